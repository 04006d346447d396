"""What Dagster shows of a batch: metadata, descriptions of columns, pictures, lateness.

Here: words and pictures. Not here: results, checks (../checks.py).
"""
