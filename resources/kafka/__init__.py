"""Kafka: how to connect, and what its brokers say of topics and offsets, without a JVM.

Here: the client, and a broker on this machine for tests and the demo. Not here: which offsets are read, and records
(resources/sources/).
"""
