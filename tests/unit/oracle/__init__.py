"""The oracle's own tests, without Spark: if the referee is wrong, so is all that is compared with it."""
