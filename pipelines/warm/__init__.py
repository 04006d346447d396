"""The warm process and the warm Spark: asked for, started, and ended.

Here: their life. Not here: what the process has imported and does (pipelines/warm_process.py), Dagster's launcher,
which asks it (pipelines/warm_runs.py).
"""
