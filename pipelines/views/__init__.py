"""Views of a pipeline: on a terminal, as values, as metrics, and as a page.

Here: what is shown, without Spark. Not here: the commands that show it (pipelines/commands/), Dagster's pages
(assets/catalog/).
"""
