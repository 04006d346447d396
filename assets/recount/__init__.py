"""The second computation that checks and audits compare with: windows, joins, late drops, duplicates.

Here: comparing, and results of windows and joins recomputed. Not here: drops recounted from the log
(resources/recount/).
"""
