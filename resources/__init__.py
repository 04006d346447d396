"""EFFECTS: Spark, the lake, sources, checks, clock and settings. The only storey that touches the world."""
