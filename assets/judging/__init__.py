"""The log, judged: the segment of one batch, or segment after segment.

Here: what each segment begins with, and its way through the engine. Not here: the rules (timeops/), storing what came
of it (the stages next to this room).
"""
