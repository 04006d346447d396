"""Windows that depend on an instant alone, on the grid of UTC or on the wall clock of a zone.

Here: where they begin, end and close. Not here: which events they hold (timeops/windows/), the keys (timeops/spec/).
"""
