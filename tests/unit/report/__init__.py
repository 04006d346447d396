"""The page of a pipeline, on tables that are written by hand."""
