"""Great Expectations over measured counts, and what stays of failed checks.

Here: all that knows Great Expectations. Not here: the measurements (assets/).
"""
