"""Time adjustment and windows for DataFrames in a notebook, with no pipeline around them.

Here: the functions that users import. Not here: rules; they are those of every pipeline.
"""
