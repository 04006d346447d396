"""The second computation that checks compare with: results of windows, late drops, duplicates.

Here: comparing. Not here: the SQL that recounts (resources/recount/).
"""
