"""Kafka: how to connect, and its brokers' answers on topics and offsets, without a JVM.

Here: the client, and a broker on this machine for tests and the demo. Not here: the choice of offsets, and records
(resources/sources/).
"""
