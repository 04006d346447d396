"""The pipeline in Dagster's catalog, and in OpenLineage: assets, their columns, checks and days, and runs.

Here: what is shown of tables and batches. Not here: the stages (assets/live.py), jobs and sensors (pipelines/).
"""
