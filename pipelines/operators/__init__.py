"""The work of operators, for commands and programs alike: decisions on records, forgetting, repairs.

Here: the steps in their order, and the result in words. Not here: each step (assets/), the commands
(pipelines/commands/).
"""
