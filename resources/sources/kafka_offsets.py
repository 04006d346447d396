"""Offsets of Kafka: what an ingestion reads of partitions, what is gone, and the position after it, as plans have it.

Every plan of an ingestion holds the position of each partition after it, so the last committed plan says where to
continue.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_BYTES = 200  # of a record: their number is not known before they are read


def split_name(topic: str, partition: int) -> str:
    """Return the name of a partition as a split."""
    return f"{topic}-{partition}"


@dataclass(frozen=True)
class OffsetRange:
    """The offsets that one ingestion reads of a partition.

    Attributes:
        end: The offset after the last one.
    """

    topic: str
    partition: int
    first: int
    end: int

    @property
    def split(self) -> str:
        """The split that the partition is."""
        return split_name(self.topic, self.partition)

    @property
    def offsets(self) -> int:
        """Number of offsets that it spans; not each of them need have a record."""
        return self.end - self.first

    @property
    def path(self) -> str:
        """Its name in plans and errors."""
        return f"{self.split}, {span(self.first, self.end)}"

    @property
    def size(self) -> int:
        """An estimate of its bytes."""
        return self.offsets * _BYTES

    @property
    def modified_us(self) -> int:
        """Always 0: a range has no time; its offsets distinguish it from others."""
        return 0


def span(first: int, end: int) -> str:
    """Return offsets in words."""
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"


@dataclass(frozen=True)
class Lost:
    """Offsets that were not read and no longer exist.

    Attributes:
        end: The offset after the last one; None if their number is unknown.
        why: Their fate, in a few words.
    """

    split: str
    first: int
    end: int | None
    why: str

    @property
    def sentence(self) -> str:
        """The missing offsets, in words."""
        what = f"offset {self.first} and later ones" if self.end is None else span(self.first, self.end)
        return f"{self.split}: {what} were not read and are gone: {self.why}"

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON, for the plan and for the argument of a control item."""
        last = {} if self.end is None else {"last": self.end - 1}
        return {"split": self.split, "first": self.first, **last}


@dataclass(frozen=True)
class TopicPosition:
    """The position of a topic.

    Attributes:
        following: The offset that is read next, by partition.
    """

    topic: str
    topic_id: str
    following: tuple[int, ...]


@dataclass(frozen=True)
class Positions:
    """The position of a source.

    Attributes:
        first_splits: The splits that existed at the first look at the source: each of them holds back the watermark
            until it has an event.
        topics: Its topics.
    """

    first_splits: tuple[str, ...]
    topics: tuple[TopicPosition, ...]

    def of_topic(self, topic: str) -> TopicPosition | None:
        """Return the position of a topic; None for one that was not seen yet."""
        return next((position for position in self.topics if position.topic == topic), None)

    def after(self, ranges: Sequence[OffsetRange]) -> "Positions":
        """Return the position of the source after ranges were read."""
        ends = {(extent.topic, extent.partition): extent.end for extent in ranges}
        topics = [
            replace(
                position,
                following=tuple(ends.get((position.topic, i), at) for i, at in enumerate(position.following)),
            )
            for position in self.topics
        ]
        return replace(self, topics=tuple(topics))

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON for the plan."""
        topics = {
            position.topic: {"id": position.topic_id, "next": [*position.following]} for position in self.topics
        }
        return {"first_splits": [*self.first_splits], "topics": topics}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Positions":
        """Return the value that `to_json` wrote."""
        topics = [TopicPosition(name, entry["id"], tuple(entry["next"])) for name, entry in values["topics"].items()]
        return cls(tuple(values["first_splits"]), tuple(topics))


def fair_shares(waiting: Sequence[int], most: int) -> list[int]:
    """Return the share of each in a common limit: equal shares, but no more than is waiting.

    Args:
        waiting: The waiting amount of each.
        most: The common limit.
    """
    shares = [0] * len(waiting)
    left = most
    by_size = sorted(range(len(waiting)), key=lambda i: waiting[i])
    for number, i in enumerate(by_size):
        # The following ones have at least as much waiting; the remainder of the division goes to the last ones.
        shares[i] = min(waiting[i], left // (len(by_size) - number))
        left -= shares[i]
    return shares


def offsets_in(ranges: Iterable[OffsetRange]) -> int:
    """Return how many offsets ranges span."""
    return sum(extent.offsets for extent in ranges)
