"""Values as numbers and as texts: instants, days, durations, URLs.

Here: what they are anywhere. Not here: what a rule makes of them.
"""
