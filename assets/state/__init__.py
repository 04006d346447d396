"""The state between two batches: how each table of it is read before a batch and written after it.

Here: reading and writing. Not here: the rules by which it changes (timeops/).
"""
