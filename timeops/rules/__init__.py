"""The rules of time as values: what the spec says, rules 1 and 2, and the reasons for which a record is refused.

Here: what needs no watermark. Not here: rule 3 and what moves the watermark (timeops/watermark/), rule 0
(timeops/events/).
"""
