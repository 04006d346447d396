"""MEANING: what event time, watermarks, order and windows are. Pure functions from DataFrame to DataFrame.

Not here: Dagster, Delta, files, the environment, the clock; nothing in this package knows what a micro-batch is.
"""
