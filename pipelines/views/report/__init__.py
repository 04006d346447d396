"""The page of a pipeline: one HTML file that needs nothing else."""
