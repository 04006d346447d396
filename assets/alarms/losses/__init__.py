"""Losses of a pipeline, of whom and why: read from its tables, and said in words with the line of the spec to change.

The alerts, `tidemark status` by way of them, and the report show the same. Not here: the values themselves
(timeops/figures/losses.py), whether they are too much (assets/alarms/alerts.py).
"""
