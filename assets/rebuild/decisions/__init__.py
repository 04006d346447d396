"""Decisions on records, which a rebuild carries out: records let in, taken out, or forgotten.

Here: what a decision changes, and the items that it adds to the log. Not here: the log with them (assets/log/), what
a person reads (pipelines/).
"""
