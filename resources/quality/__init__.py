"""Great Expectations over measured counts, and its pages.

Here: all that knows Great Expectations. Not here: the measurements (assets/).
"""
