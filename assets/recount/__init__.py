"""What the checks compute a second way: results of windows, late drops, duplicates.

Here: comparing. Not here: the SQL that recounts (resources/recount/).
"""
