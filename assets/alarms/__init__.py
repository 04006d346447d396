"""Alarms: what was lost and of whom, who is silent, what needs a person, and the messages about it.

Here: what is too much, too old or missing, in words, and which messages are due. Not here: the checks that hold a
batch back (assets/checks.py), sending messages (resources/notifying.py).
"""
