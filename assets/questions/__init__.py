"""Questions to a pipeline's tables: why a record or a window is as it is, a stretch of its log as a case.

Here: values with an answer, as a text and as JSON; nothing is written. Not here: commands (pipelines/commands), the
rules of time (timeops).
"""
