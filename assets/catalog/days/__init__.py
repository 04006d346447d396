"""Days of windows in Dagster: which there are, their checks, and their versions.

Here: what is reported of a day. Not here: computing days again (assets/rebuild/days.py).
"""
