"""The recount: drops and order counted a second time from the arrival log, without code of the pipeline's rules.

Here: any of its code. Not here: what it is compared with (assets/recount/), and any code of `timeops` (an import
contract forbids it): its mistakes must not be repeated here.
"""
