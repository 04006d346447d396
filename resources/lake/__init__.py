"""The Delta tables of a pipeline: versions, reads, writes that can be repeated, upkeep.

Here: everything that knows Delta Lake. Not here: what a batch of writes is (../batches/).
"""
