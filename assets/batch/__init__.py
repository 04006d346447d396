"""The batch at work: what is judged of its segment of the log, and the clock of the log around it.

Here: judging, writing as one attempt. Not here: planning it (../planning.py), what a stage computes (../).
"""
