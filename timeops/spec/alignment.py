"""The `alignment` of a source: how far it may run ahead of the others of its group (F).

Here: the keys. Not here: rules between sources (consistency.py), who waits for whom (alignment.py).
"""

from datetime import timedelta

from pydantic import Field

from tidemark.timeops.durations import micros
from tidemark.timeops.spec.fields import Duration, Name, PositiveDuration, SpecModel


class Alignment(SpecModel):
    """How far one source may run ahead of the others of its group (F, scan.watermark.alignment.*)."""

    group: Name = Field(description="Sources of one group wait for each other.")
    max_drift: Duration = Field(
        description="A source whose watermark is further than this above the lowest of the group is not read on."
    )
    update_interval: PositiveDuration = Field(
        default=timedelta(seconds=1),
        description="How much of the source, by the times of its files, is read before it is judged again; at least "
        "one file.",
    )

    @property
    def max_drift_us(self) -> int:
        """The largest drift in microseconds."""
        return micros(self.max_drift)

    @property
    def update_interval_us(self) -> int:
        """The interval in microseconds."""
        return micros(self.update_interval)
