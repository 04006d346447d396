"""Audits: is everything that a pipeline has stored there, readable, and what follows from its log? And repairs.

Here: findings over the whole history, and what mends them. Not here: the checks of a batch (assets/checks.py), the
second opinion itself (assets/recount/, resources/recount/), rebuilds (assets/rebuild/).
"""
