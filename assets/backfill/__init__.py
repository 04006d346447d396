"""Days of window tables, recomputed from the arrival log.

Here: which part of the log is needed, and its results. Not here: live batches (../live.py).
"""
