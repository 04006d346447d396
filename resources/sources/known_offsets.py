"""What one ingestion reads of a partition of Kafka, and what the lake remembers of the partitions of a source.

Here: these as values, and as JSON for the plan of an ingestion. Not here: which offsets are read (kafka_offsets.py),
their records (kafka_rows.py).

Every plan of an ingestion says where each partition stands behind it, so the last committed one says where to go on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_BYTES = 200  # of a record: how many it has is not known before it is read


def split_name(topic: str, partition: int) -> str:
    """The split that a partition is."""
    return f"{topic}-{partition}"


@dataclass(frozen=True)
class OffsetRange:
    """What one ingestion reads of a partition.

    Attributes:
        topic: The topic.
        partition: Number of the partition.
        first: The first offset.
        end: The offset behind the last one.
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
        """How many offsets it spans; not each of them need have a record."""
        return self.end - self.first

    @property
    def path(self) -> str:
        """How plans and errors name it."""
        return f"{self.split}, {span(self.first, self.end)}"

    @property
    def size(self) -> int:
        """Bytes, a guess."""
        return self.offsets * _BYTES

    @property
    def modified_us(self) -> int:
        """Nothing dates a range; what it spans tells it from others."""
        return 0


def span(first: int, end: int) -> str:
    """Offsets in words."""
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"


@dataclass(frozen=True)
class Lost:
    """Offsets that were not read and are not there any more.

    Attributes:
        split: The split that the partition is.
        first: The first of them.
        end: The offset behind the last one; None where nobody knows how many there were.
        why: What became of them, in a few words.
    """

    split: str
    first: int
    end: int | None
    why: str

    @property
    def sentence(self) -> str:
        """What is missing, in words."""
        what = f"offset {self.first} and later ones" if self.end is None else span(self.first, self.end)
        return f"{self.split}: {what} were not read and are gone: {self.why}"

    def to_json(self) -> dict[str, Any]:
        """For the plan, and for the argument of a control item."""
        last = {} if self.end is None else {"last": self.end - 1}
        return {"split": self.split, "first": self.first, **last}


@dataclass(frozen=True)
class TopicPosition:
    """Where a topic stands.

    Attributes:
        topic: Its name.
        topic_id: Its id.
        following: By partition the offset that is read next.
    """

    topic: str
    topic_id: str
    following: tuple[int, ...]


@dataclass(frozen=True)
class Positions:
    """Where a source stands.

    Attributes:
        first_splits: The splits that were there when the source was looked at first: each of them holds back the
            watermark until it has an event.
        topics: Its topics.
    """

    first_splits: tuple[str, ...]
    topics: tuple[TopicPosition, ...]

    def of_topic(self, topic: str) -> TopicPosition | None:
        """Where a topic stands; None for one that was not seen yet."""
        return next((one for one in self.topics if one.topic == topic), None)

    def after(self, ranges: Sequence[OffsetRange]) -> "Positions":
        """Where the source stands when ranges have been read."""
        ends = {(one.topic, one.partition): one.end for one in ranges}
        topics = [
            replace(one, following=tuple(ends.get((one.topic, i), at) for i, at in enumerate(one.following)))
            for one in self.topics
        ]
        return replace(self, topics=tuple(topics))

    def to_json(self) -> dict[str, Any]:
        """For the plan."""
        topics = {one.topic: {"id": one.topic_id, "next": [*one.following]} for one in self.topics}
        return {"first_splits": [*self.first_splits], "topics": topics}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Positions":
        """What `to_json` wrote."""
        topics = [TopicPosition(name, said["id"], tuple(said["next"])) for name, said in values["topics"].items()]
        return cls(tuple(values["first_splits"]), tuple(topics))


def fair_shares(waiting: Sequence[int], most: int) -> list[int]:
    """How much each of several has of what they may have together: the same, but no more than is waiting.

    Args:
        waiting: How much is waiting of each.
        most: How much they may have together.
    """
    shares = [0] * len(waiting)
    left = most
    by_size = sorted(range(len(waiting)), key=lambda i: waiting[i])
    for number, i in enumerate(by_size):
        # Those that follow have at least as much waiting; what cannot be divided goes to the last ones.
        shares[i] = min(waiting[i], left // (len(by_size) - number))
        left -= shares[i]
    return shares


def offsets_in(ranges: Iterable[OffsetRange]) -> int:
    """How many offsets ranges span."""
    return sum(one.offsets for one in ranges)
