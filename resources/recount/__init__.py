"""A second count of late drops and duplicates, in plain SQL that shares no code with the rules of time.

Here: SQL. Not here: any code of timeops.
"""
