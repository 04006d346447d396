"""The watermark and the state that it rests on: timelines, splits, idleness, ticks, periodic emission, alignment.

Here: how the watermark moves. Not here: what it does to an event (timeops/events/) or to a window (timeops/windows/).
"""
