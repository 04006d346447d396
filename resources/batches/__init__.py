"""The log of batches: what was planned, what was committed, who works on it.

Here: rows of `batches`. Not here: the tables that a batch writes (resources/delta/).
"""
