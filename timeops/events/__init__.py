"""The rules for one event: event time, duplicates, arrival policies, adjustment, release.

Here: rules 0 to 3 and the order of release. Not here: windows (timeops/windows/), the texts of dead letters
(timeops/dead_letters.py).
"""
