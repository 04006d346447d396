"""SQL that users write: its words, whether its value is a function of the log, and what happens where it fails.

Here: single expressions and aggregates. Not here: the keys of a spec that hold them (timeops/spec/).
"""
