"""The parts of Dagster's code location: jobs, what launches them, and what other assets get of a pipeline.

Here: one file for each kind of job. Not here: putting them together (pipelines/definitions.py), what a job does
(assets/).
"""
