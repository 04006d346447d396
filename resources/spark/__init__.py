"""Spark sessions: where they compute, how they are started and reached.

Here: sessions and their settings. Not here: the meaning of a computation (timeops/).
"""
