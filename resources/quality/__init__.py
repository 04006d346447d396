"""Great Expectations over what was measured, and its pages.

Here: everything that knows Great Expectations. Not here: what is measured (assets/).
"""
