"""The commands of `tidemark` other than `run`: questions, changes, decisions, upkeep; a file for each noun.

Here: options, and what is printed. Not here: what all commands share (pipelines/command_line.py).
"""
