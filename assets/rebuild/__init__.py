"""Rebuilds: derived tables computed from the log again, next to the old ones, and switched to in one commit.

Here: what of the log is judged in which pieces, the pipeline that does it, and the switch; days of windows, which a
backfill computes in the tables themselves. Not here: what a stage computes (../).
"""
