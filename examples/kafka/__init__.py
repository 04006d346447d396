"""Kafka on this machine: a broker for the tests and the demo, and the demo itself. The product does not import it."""
