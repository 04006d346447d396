"""Kafka as a source: the offsets that the next ingestion reads, asked of the brokers without Spark, and its position.

Here: topics and partitions that come, go, or are created again, offsets that are gone, and the size of one ingestion.
Not here: positions (resources/sources/kafka_offsets.py), questions to brokers
(resources/sources/kafka_connection.py), records (resources/sources/kafka_records.py), partitions of an aligned source
that are ahead (timeops/watermark/alignment.py).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from tidemark.resources.places.place import Place
from tidemark.resources.sources.kafka_connection import Broker, Connection, Partition, Topic, refused_variables
from tidemark.resources.sources.kafka_offsets import (
    Lost,
    OffsetRange,
    Positions,
    TopicPosition,
    fair_shares,
    offsets_in,
    split_name,
)
from tidemark.resources.sources.kafka_records import avro_package, read_offsets
from tidemark.resources.sources.reader import Found, Known, Needs, SourceRead, SourceReader
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import KafkaSource
from tidemark.timeops.values.utc import us_of


@dataclass(frozen=True)
class OffsetsFound(Found):
    """The findings at the brokers.

    Attributes:
        offsets: Offsets to be read now, by partition.
        before: The position of the source after the last ingestion; None before its first one.
        at: Its position now, before these offsets are read; None if it is not known.
        lost: Offsets that are gone and were not read, to be noted.
        ends: The offset after the last record of each partition.
        splits_ahead: The partitions with offsets that are `ahead`, if they are the splits of the source.
    """

    PART: ClassVar[str] = "offset"

    offsets: tuple[OffsetRange, ...] = ()
    before: Positions | None = None
    at: Positions | None = None
    lost: tuple[Lost, ...] = ()
    ends: tuple[tuple[str, int], ...] = ()
    splits_ahead: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[OffsetRange, ...]:
        """The ranges of offsets."""
        return self.offsets

    @property
    def count(self) -> int:
        """Number of offsets to read now."""
        return offsets_in(self.offsets)

    @property
    def splits(self) -> tuple[str, ...]:
        """The partitions that have offsets to read."""
        return tuple(extent.split for extent in self.offsets)

    @property
    def needs_place(self) -> bool:
        """Return whether there are records to copy."""
        return bool(self.offsets)

    @property
    def is_moved(self) -> bool:
        """Return whether the position is another one than was remembered."""
        return self.at != self.before

    @property
    def is_work(self) -> bool:
        """Return whether there are offsets to read, or a position to remember."""
        return bool(self.offsets) or self.is_moved

    @property
    def has_news(self) -> bool:
        """Return whether there is something to read or to remember."""
        return bool(self.is_work or self.lost)

    @property
    def passed_over(self) -> tuple[str, ...]:
        """One sentence for the offsets of each partition that are gone, and for what holds results back."""
        return (*(loss.sentence for loss in self.lost), *self.warnings)

    def came_after(self, ends: Mapping[str, int]) -> bool:
        """Return whether there are only offsets after the ends that the partitions had."""
        others = self.is_moved or self.lost
        return not others and all(extent.first >= ends.get(extent.split, 0) for extent in self.offsets)

    def all_left(self) -> "OffsetsFound":
        """Return the findings if no offset is read now."""
        return replace(self, offsets=(), left=self.new, ahead=self.new)


@dataclass(frozen=True)
class KafkaReader(SourceReader[OffsetsFound]):
    """Reads topics of Kafka; see `SourceReader`."""

    source: KafkaSource
    base: Path

    def needs(self) -> Needs:
        """Return the package that reads Avro, and the variables that may not be sent to brokers."""
        packages = (avro_package(),) if self.source.format == "avro" else ()
        return Needs(packages, tuple(refused_variables(self.source)))

    def _broker(self) -> Broker:
        return Broker(Connection.of(self.source, self.base))

    def seen(self, memory: Known) -> list[object]:  # noqa: ARG002
        """Return the topics, and the end of each partition."""
        broker = self._broker()
        topics = broker.described(_names(self.source, broker))
        ends = broker.ends(_partitions(topics))
        ids = [(f"{name} {topic.topic_id}" if topic else name, 0) for name, topic in topics.items()]
        return [*sorted([*ids, *((split_name(*partition), end) for partition, end in ends.items())])]

    def look(self, memory: Known) -> OffsetsFound:
        """Compare the topics with the position after the last ingestion; of an aligned source all offsets are found.

        Raises:
            InputError: The brokers cannot be asked, or the topics cannot be read, and none was read before.
            MachineError: The client of Kafka is not installed.
        """
        note = memory.note_of_last_ingestion("positions")
        before = None if note is None else Positions.from_json(note)
        try:
            return _Look.at(self.source, self._broker(), before).findings()
        except InputError as error:
            if before is None:
                raise
            return OffsetsFound(errors=(error,), before=before, at=before)

    def until_judged(self, findings: OffsetsFound, ahead: Collection[str]) -> OffsetsFound:
        """Return the offsets of partitions that are not ahead, up to `update_interval` after the earliest."""
        chosen = [extent for extent in findings.offsets if extent.split not in ahead]
        try:
            read = _in_interval(self.source, self._broker(), chosen)
        except InputError as error:
            errors = (*findings.errors, error)
            return replace(findings, offsets=(), at=findings.before, lost=(), left=findings.new, errors=errors)
        ranges = _within_bounds(self.source, read)
        waits = [extent for extent in findings.offsets if extent.split in ahead]
        return replace(
            findings,
            offsets=ranges,
            left=findings.new - offsets_in(ranges),
            ahead=offsets_in(waits),
            splits_ahead=tuple(extent.split for extent in waits),
        )

    def remember(self, findings: OffsetsFound) -> Mapping[str, Any]:
        """Return the range of each partition, the position after it, and the offsets that are gone."""
        notes = {
            "offsets": {extent.split: [extent.first, extent.end] for extent in findings.offsets},
            "positions": None if findings.at is None else findings.at.after(findings.offsets).to_json(),
            "lost": [loss.to_json() for loss in findings.lost],
        }
        return {name: value for name, value in notes.items() if value}

    def read(self, spark: SparkSession, findings: OffsetsFound, place: Place, time_zone: str) -> SourceRead:
        """Fetch the records, and copy them to a file in `place`."""
        copy = place / f"{self.source.name}.parquet"
        return read_offsets(spark, self.source, findings.offsets, self.base, copy=copy, time_zone=time_zone)


def _names(source: KafkaSource, broker: Broker) -> list[str]:
    if source.topic_pattern is None:
        return list(source.topics)
    return [name for name in broker.names() if _is_wanted(source, name)]


def _is_wanted(source: KafkaSource, topic: str) -> bool:
    return topic in source.topics if source.topic_pattern is None else bool(re.fullmatch(source.topic_pattern, topic))


def _partitions(topics: Mapping[str, Topic | None]) -> list[Partition]:
    return [(name, i) for name, topic in topics.items() if topic is not None for i in range(topic.partitions)]


@dataclass(frozen=True)
class _Look:
    """The brokers' answers for a source, next to its remembered position.

    Attributes:
        topics: The topics of the source by name; None for a missing one.
        earliest: The first offset of each partition that is still there.
        ends: The offset after the last one.
    """

    source: KafkaSource
    broker: Broker
    before: Positions | None
    topics: Mapping[str, Topic | None]
    earliest: Mapping[Partition, int]
    ends: Mapping[Partition, int]

    @classmethod
    def at(cls, source: KafkaSource, broker: Broker, before: Positions | None) -> "_Look":
        """Ask the brokers now."""
        names = (
            [position.topic for position in before.topics if _is_wanted(source, position.topic)]
            if before is not None
            else []
        )
        topics = broker.described(dict.fromkeys([*_names(source, broker), *names]))
        partitions = _partitions(topics)
        # Ask for the ends first: then records that are deleted in between count as missing, and new ones do not.
        ends = broker.ends(partitions)
        return cls(source, broker, before, topics, broker.earliest(partitions), ends)

    def findings(self) -> OffsetsFound:
        """Return the offsets that the next ingestion reads.

        Raises:
            InputError: A topic is missing, or records are gone and the source does not continue without them.
        """
        self._check_topics()
        gone_splits = [
            split for split in self._first_splits if split not in {split_name(*each) for each in self.ends}
        ]
        lost: list[Lost] = []
        absent = (
            [position for position in self.before.topics if self.topics.get(position.topic) is None]
            if self.before
            else []
        )
        there = [topic for topic in self.topics.values() if topic is not None]
        gone = [position for position in absent if position.topic in self.topics]
        for position in gone:
            why = "the topic was deleted"
            lost += [Lost(split_name(position.topic, i), at, None, why) for i, at in enumerate(position.following)]
        positions = [
            *(position for position in absent if position not in gone),
            *(self._position(topic, lost) for topic in there),
        ]
        if lost and self.source.on_data_loss == "fail":
            raise self._lost(lost)
        splits = tuple(split_name(*partition) for partition in self.ends)
        now = Positions(
            splits if self.before is None else self.before.first_splits,
            tuple(sorted(positions, key=lambda position: position.topic)),
        )
        waiting = self._waiting(now)
        ranges = _within_bounds(self.source, waiting) if self.source.alignment is None else tuple(waiting)
        return OffsetsFound(
            left=offsets_in(waiting) - offsets_in(ranges),
            offsets=ranges,
            before=self.before,
            at=now,
            lost=tuple(lost),
            ends=tuple((split_name(*partition), end) for partition, end in self.ends.items()),
            warnings=(_gone(self.source, gone_splits),) if gone_splits else (),
        )

    @property
    def _first_splits(self) -> Sequence[str]:
        """The partitions that existed at first and are splits: the watermark waits for each of them."""
        return self.before.first_splits if self.before is not None and self.source.split is None else ()

    def _check_topics(self) -> None:
        """Check that all topics of the spec exist, and at first also the topics of `start`.

        Raises:
            InputError: A topic does not exist.
        """
        for name in self.source.topics:
            if self.topics[name] is None:
                was_read = self.before is not None and self.before.of_topic(name) is not None
                raise InputError(
                    f"Source {self.source.name!r}: there is no topic {name} at {self.source.bootstrap_servers}"
                    + (" any more" if was_read else ""),
                    expected="topics that exist, and that this user may see (DESCRIBE)",
                    remedy="correct `topics`, or create the topic"
                    if not was_read
                    else "create the topic again, or take it out of `topics`; what was read of it stays",
                )
        start = self.source.start if self.before is None and isinstance(self.source.start, Mapping) else {}
        for name in start:
            if self.topics.get(name) is None:
                raise InputError(
                    f"Source {self.source.name!r}: `start` names {name}, which is not a topic that is read",
                    expected=f"one of {', '.join(name for name, topic in self.topics.items() if topic)}",
                    remedy="correct `start`",
                )

    def _position(self, topic: Topic, lost: list[Lost]) -> TopicPosition:
        """Return the position of a topic, after its missing offsets."""
        position = self.before.of_topic(topic.name) if self.before is not None else None
        numbers = range(topic.partitions)
        if position is None:
            following = self._start(topic) if self.before is None else self._beginning(topic)
        elif position.topic_id != topic.topic_id:
            why = "the topic was deleted and created again"
            lost += [Lost(split_name(topic.name, i), at, None, why) for i, at in enumerate(position.following)]
            following = self._beginning(topic)
        else:
            following = [*position.following, *([0] * (topic.partitions - len(position.following)))]
        return TopicPosition(
            topic.name, topic.topic_id, tuple(self._there((topic.name, i), following[i], lost) for i in numbers)
        )

    def _beginning(self, topic: Topic) -> list[int]:
        return [self.earliest[topic.name, i] for i in range(topic.partitions)]

    def _start(self, topic: Topic) -> list[int]:
        """Return the offsets at which the first ingestion begins."""
        start, partitions = self.source.start, [(topic.name, i) for i in range(topic.partitions)]
        if isinstance(start, datetime):
            since = self.broker.since(dict.fromkeys(partitions, -(us_of(start) // -1000)))
            return [self.ends[partition] if (at := since[partition]) is None else at for partition in partitions]
        if isinstance(start, Mapping):
            offsets = start.get(topic.name, {})
            beyond = [f"{topic.name}-{i}" for i in offsets if i >= topic.partitions]
            if beyond:
                raise InputError(
                    f"Source {self.source.name!r}: `start` names {', '.join(beyond)}, and the topic has "
                    f"{topic.partitions} partition(s)",
                    expected=f"partitions 0 to {topic.partitions - 1}",
                    remedy="correct `start`",
                )
            return [offsets.get(i, self.earliest[partition]) for i, partition in enumerate(partitions)]
        return [self.ends[partition] if start == "latest" else self.earliest[partition] for partition in partitions]

    def _there(self, partition: Partition, following: int, lost: list[Lost]) -> int:
        """Return the offset at which a partition can be read on; offsets missing before it are lost."""
        split, first, end = split_name(*partition), self.earliest[partition], self.ends[partition]
        if following < first:
            lost.append(Lost(split, following, first, "they were deleted, by retention or by hand"))
            return first
        if following > max(end, first):
            if self.before is None:
                raise InputError(
                    f"Source {self.source.name!r}: `start` names offset {following} of {split}, which ends at {end}",
                    expected=f"an offset of at most {end}",
                    remedy="correct `start`",
                )
            why = f"the partition ends before offset {end}, and had been read up to {following - 1}"
            lost.append(Lost(split, end, None, why))
            return end
        return following

    def _lost(self, lost: list[Lost]) -> InputError:
        sentences = "; ".join(loss.sentence for loss in lost[:_MOST_NAMED])
        more = f"; and so for {len(lost) - _MOST_NAMED} more partitions" if len(lost) > _MOST_NAMED else ""
        return InputError(
            f"Source {self.source.name!r}: {sentences}{more}",
            expected="records that Kafka keeps until they were read (retention.ms and retention.bytes of the topic)",
            remedy="nothing more is read of the source. `on_data_loss: note` continues after what is missing, and "
            "`log_control` says which offsets these are",
        )

    def _waiting(self, now: Positions) -> list[OffsetRange]:
        """Return all unread offsets of each partition."""
        following = {(position.topic, i): at for position in now.topics for i, at in enumerate(position.following)}
        return [
            OffsetRange(*partition, following[partition], self.ends[partition])
            for partition in sorted(self.ends)
            if following[partition] < self.ends[partition]
        ]


def _gone(source: KafkaSource, splits: Sequence[str]) -> str:
    more = f" and {len(splits) - _MOST_NAMED} more" if len(splits) > _MOST_NAMED else ""
    return (
        f"source {source.name}: {', '.join(splits[:_MOST_NAMED])}{more} are gone, and as splits they hold back the "
        "watermark. To continue without them, set `idle: {advance: exclude_split, timeout: 10 minutes}` under `time`"
    )


def _within_bounds(source: KafkaSource, ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the ranges, shortened to what one ingestion reads at most."""
    shares = fair_shares([extent.offsets for extent in ranges], source.max_records)
    return tuple(
        replace(extent, end=extent.first + share) for extent, share in zip(ranges, shares, strict=True) if share
    )


def _in_interval(source: KafkaSource, broker: Broker, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges up to `update_interval` after the earliest waiting timestamp, without later ranges."""
    firsts = {(extent.topic, extent.partition): extent.first for extent in ranges}
    times = broker.times_at(firsts) if firsts else {}
    times_ms = [ms for ms in times.values() if ms is not None]
    if source.alignment is None or not times_ms:
        return [*ranges]
    earliest_ms, step_ms = min(times_ms), -(source.alignment.update_interval_us // -1000)
    begun = {
        partition: at
        for partition, at in firsts.items()
        if (ms := times[partition]) is None or ms < earliest_ms + step_ms
    }
    stops = _stops(broker, begun, earliest_ms, step_ms)
    chosen = []
    for extent in ranges:
        partition = (extent.topic, extent.partition)
        if partition in begun:
            stop = stops[partition]
            chosen.append(extent if stop is None else replace(extent, end=min(stop, extent.end)))
    return chosen


def _stops(
    broker: Broker, firsts: Mapping[Partition, int], from_ms: int, step_ms: int
) -> Mapping[Partition, int | None]:
    """Return by partition the offset, after its first one, of the first record a step later; None if there is none.

    Timestamps of producers need not rise. If a record before the first one is already that late, the step is doubled
    until it leads beyond it.
    """
    offsets: dict[Partition, int | None] = {}
    while len(offsets) < len(firsts):
        open_ones = [partition for partition in firsts if partition not in offsets]
        since_ms = min(from_ms + step_ms, _LATEST_MS)
        stops = broker.since(dict.fromkeys(open_ones, since_ms))
        is_end = since_ms == _LATEST_MS
        offsets |= {partition: stop for partition, stop in stops.items() if stop is None or stop > firsts[partition]}
        offsets |= {partition: None for partition in open_ones if is_end and partition not in offsets}
        step_ms *= 2
    return offsets


_MOST_NAMED = 5
_LATEST_MS = 2**63 - 1  # of Kafka's timestamps
