"""Windows over a segment of the log: which events they hold, when they close, what their results are.

Here: every kind of window, revisions, late events; timeops/windows/kinds.py says what a kind answers,
timeops/windows/results.py asks. Not here: what becomes of an event before (timeops/events/).
"""
