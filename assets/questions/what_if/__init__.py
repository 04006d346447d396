"""Answers before anything is done: what would be by a changed spec, or by other settings.

Here: the log judged in memory, and compared with the tables. Not here: the rebuild itself (assets/rebuild/).
"""
