"""`tidemark test`: the cases of a spec, run in memory and compared.

Here: running and comparing. Not here: reading case files (timeops/cases.py).
"""
