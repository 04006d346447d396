"""STAGES: thin Dagster assets that read, transform, write and report. No rule of time, no file access."""
