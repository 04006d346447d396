"""Pipelines under seeded chaos: kills, two runs at once, full disks, clocks that jump, files that are damaged.

`python -m tests.chaos --seed 1 --kills 200` runs rounds of it. After each of them an audit finds nothing, and the
rows are those of pipelines that nothing has disturbed.
"""
