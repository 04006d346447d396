"""Ingestion: from what the sources have to the numbered records of `raw_events`.

Here: the stage, and what it and others ask before it: what waits, in which order, is a tick due. Not here: reading a
source (resources/sources/), what later items have made of the log (assets/log/).
"""
