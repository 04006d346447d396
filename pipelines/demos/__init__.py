"""Programs of the checkout: the demos, and Dagster's UI over their specs, as `make` starts them.

Here: real data, and the words around a run. Not here: the run itself (pipelines/cli.py).
"""
