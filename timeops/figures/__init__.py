"""Figures about a log or a part of it: what became of records, what was lost and why, and what other tolerances do.

Here: numbers, for people and their decisions. Not here: the rules (timeops/watermark/, timeops/events/), reading
tables (assets/).
"""
