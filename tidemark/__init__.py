"""Tidemark: event-time pipelines on PySpark, Delta Lake and Dagster."""
