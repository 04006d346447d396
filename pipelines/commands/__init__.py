"""The commands of `tidemark`, one module each.

Here: options, and what is printed. Not here: what all commands share (../command_line.py).
"""
