"""The Delta tables of a pipeline: versions, reads, writes that can be repeated, upkeep.

Here: all that knows Delta Lake. Not here: batches of writes (resources/batches/).
"""
