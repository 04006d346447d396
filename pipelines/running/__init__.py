"""Runs in this process: of Dagster's jobs, one after the other until nothing waits.

Here: starting them, waiting for them, why one failed. Not here: the jobs (pipelines/code_location/), what is shown of
a run (pipelines/views/).
"""
