"""The commands of `tidemark`, those that look and those that operate.

Here: options, and what is printed. Not here: what all commands share (../command_line.py).
"""
