"""Metadata, descriptions of columns, pictures and lateness of a batch, as Dagster shows them.

Here: words and pictures. Not here: results, checks (assets/checks.py).
"""
