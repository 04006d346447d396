"""Joins: which event of one source goes with an event of another, and when an answer is due.

Here: the sides of a join, answers and their revisions, what a join needs of the past, as functions of judged events.
Not here: which events are accepted (timeops/events/), how watermarks move (timeops/watermark/), storage.
"""
