"""Stored tables between batches: copied, without old rows, and with the rows that others have changed.

Here: one file for each of these. Not here: joining and deleting files (resources/delta/upkeep.py), when it is done
(pipelines/).
"""
