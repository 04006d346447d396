"""Questions to a pipeline's tables: why a record or a window is as it is, how long to wait, what if.

Here: values with an answer, as a text and as JSON; nothing is written. Not here: commands (pipelines/commands), the
rules of time (timeops).
"""
