"""The commands of `tidemark`: some look, others operate.

Here: options, and what is printed. Not here: what all commands share (../command_line.py).
"""
