"""How a segment is computed: what is done with its frames, and the settings of Spark that the meaning rests on.

Here: what computes, without a rule. Not here: sessions (resources/spark/).
"""
