"""Figures about a whole log: what became of its records, what was lost and why, and what other tolerances would do.

Here: numbers, for people and their decisions. Not here: the rules (../watermark/, ../events/), reading tables
(assets/).
"""
