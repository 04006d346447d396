"""Questions to the log: why a record or a window is what it is, and what other settings would make of all of it.

Here: answers, computed from the log and proved by acting on them; nothing is written. Not here: judging the log
(../replay.py), what is shown of an answer (pipelines/).
"""
