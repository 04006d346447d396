"""Days of window tables, computed anew from the arrival log.

Here: which part of the log is needed, and its results. Not here: live batches (../live.py).
"""
