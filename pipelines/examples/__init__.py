"""The examples that come with Tidemark: specs and their input, and where they are written.

Here: the smallest ones, for a first run. Not here: a year of flights (pipelines/demos/).
"""
