"""The keys of every source of a spec: its columns, its times, its splits, how far it may run ahead of others (F).

Here: the keys that all kinds share, and those of all that lies in a folder. Not here: those of one kind
(files_source.py, delta_source.py, kafka_source.py), reading (resources/sources/), rules between sources
(consistency.py), who waits for whom (watermark/alignment.py).
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, PlainSerializer, model_validator

from tidemark.timeops.durations import micros
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.problems import Problem, raise_any, show
from tidemark.timeops.spec.fields import (
    ByteSize,
    Duration,
    Expression,
    Flag,
    Frozen,
    InstantExpression,
    Name,
    PositiveDuration,
    SpecModel,
    Text,
    TimeZone,
    columns_in_tables,
    rename_problems,
    schema_problems,
)

SOURCE_KINDS = ("files", "delta", "kafka")
ORDERS = ("arrival_time", "position")


class Alignment(SpecModel):
    """How far a source, or a partition of Kafka, may run ahead of its group (F, scan.watermark.alignment.*)."""

    group: Name = Field(description="Sources of one group wait for each other; of Kafka each partition.")
    max_drift: Duration = Field(
        description="A source, or a partition of Kafka, whose watermark is further than this above the lowest of the "
        "group is not read."
    )
    update_interval: PositiveDuration = Field(
        default=timedelta(seconds=1),
        description="How much of the source, by the times of its files, commits or Kafka records, is read before it "
        "is judged again; at least one of them.",
    )

    @property
    def max_drift_us(self) -> int:
        """The largest drift in microseconds."""
        return micros(self.max_drift)

    @property
    def update_interval_us(self) -> int:
        """The interval in microseconds."""
        return micros(self.update_interval)


class SourceIdle(SpecModel):
    """When the splits of one source are idle."""

    timeout: PositiveDuration = Field(
        description="How long without an event, by the clock of the log; overrides time.idle.timeout."
    )

    @property
    def timeout_us(self) -> int:
        """The timeout in microseconds."""
        return micros(self.timeout)


def distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return a list in which no value occurs twice.

    Raises:
        ProblemsError: A value does.
    """
    twice = [Problem(f"{show(v)} occurs twice", at=(i,)) for i, v in enumerate(values) if v in values[:i]]
    raise_any(twice)
    return values


class Source(SpecModel):
    """A source of records, whatever kind it is."""

    ARRIVALS: ClassVar[str]
    """The arrival times that its records have by themselves."""

    name: Name = Field(description="Name of the source, the value of `_source`.")
    was: Name | None = Field(
        default=None,
        description="The source's name until now: what was read of it goes on under the new one. It may stay in the "
        "spec.",
        json_schema_extra={"since": "0.2.0"},
    )
    kind: str
    columns: Text = Field(alias="schema", description="Columns as Spark DDL; other columns are left out.")
    rename: Annotated[Mapping[Text, Text], Frozen, PlainSerializer(dict)] = Field(
        default={},
        description="New names for columns: {name in the input: name in the tables}; `schema` has one of the two.",
    )
    keep_unknown: Flag = Field(
        default=False, description="Keep columns that `schema` does not name, as JSON text in `_rescued`."
    )
    arrival_time: InstantExpression | None = Field(
        default=None,
        description="When a record arrived, a Spark SQL expression; default: the time of its file, of the commit "
        "that added it, or the timestamp of a Kafka record.",
    )
    live: Flag = Field(
        default=False,
        description="With arrival_time: it is the machine's time, so a live run may continue it by the clock.",
    )
    split: Expression | None = Field(
        default=None,
        description="Divides the source into splits, such as a partition; the watermark is that of the slowest "
        "of the splits. A source without it is one split beside the other sources.",
    )
    splits: Annotated[tuple[Text, ...], AfterValidator(distinct)] = Field(
        default=(), description="Values of `split` that hold back the watermark before their first event."
    )
    timestamp_by: InstantExpression | None = Field(
        default=None, description="Event time of this source; overrides time.timestamp_by."
    )
    time_zone: TimeZone | None = Field(
        default=None, description="Zone of this source's times without one; overrides time.time_zone."
    )
    out_of_orderness: Duration | None = Field(
        default=None, description="Out-of-orderness of this source's splits; overrides time.out_of_orderness."
    )
    idle: SourceIdle | None = Field(default=None, description="When this source's splits are idle.")
    alignment: Alignment | None = Field(
        default=None,
        description="Wait for sources of a group, and partitions, that are slower: {group: g, max_drift: 1 minute}.",
    )

    @property
    def place(self) -> str:
        """The name of the source in messages: the path, or the topics."""
        raise NotImplementedError

    @property
    def has_splits(self) -> bool:
        """True if its records are of several splits."""
        return self.split is not None

    @property
    def is_read_by_split(self) -> bool:
        """True if each of its splits can be read by itself, so that one may wait while others are read on."""
        return False

    @property
    def columns_in_tables(self) -> list[str]:
        """Names of the payload columns as they are in the tables, in the order of `schema`."""
        return [*columns_in_tables(self.columns, self.rename), *self.added_columns]

    @property
    def added_columns(self) -> Mapping[str, str]:
        """Payload columns that are not of `schema`, and the type of each as DDL."""
        return {}

    @property
    def out_of_orderness_us(self) -> int | None:
        """The out-of-orderness in microseconds; None where `time` says it."""
        return None if self.out_of_orderness is None else micros(self.out_of_orderness)

    @property
    def follows_wall_clock(self) -> bool:
        """True if its arrival times are the machine's, so that they go on while nothing comes."""
        return self.arrival_time is None or self.live

    @model_validator(mode="after")
    def _shared_keys(self) -> "Source":
        raise_any([*self._own_problems(), *self._name_problems(), *self._arrival_problems()])
        return self

    def _own_problems(self) -> Iterator[Problem]:
        """Find what is wrong with the keys of one kind."""
        yield from ()

    def _name_problems(self) -> list[Problem]:
        return rename_problems(self.rename) or schema_problems(self.columns, self.rename)

    def _arrival_problems(self) -> Iterator[Problem]:
        if self.arrival_time is not None and mentions(self.arrival_time, "_arrival_time"):
            found = "`_arrival_time` is what this expression defines"
            expected = "an expression over columns of the record"
            yield Problem(found, expected=expected, at=("arrival_time",))
        if self.live and self.arrival_time is None:
            found = f"`live: true` has no effect without `arrival_time`: {self.ARRIVALS} are the machine's already"
            yield Problem(found, remedy="leave it out", at=("live",))


class StoredSource(Source):
    """A source that lies in a folder and is read part by part."""

    PART: ClassVar[str]
    """The name of one part of it."""

    path: Text
    max_bytes: ByteSize = Field(
        default=10 * 1024**3,
        description="Most bytes in one ingestion: a number, or text such as 1 GiB; at least one file or version is "
        "read.",
    )

    @property
    def place(self) -> str:
        """The path."""
        return self.path

    def _arrival_problems(self) -> Iterator[Problem]:
        yield from super()._arrival_problems()
        given = self.alignment.model_fields_set if self.alignment is not None else ()
        if self.arrival_time is not None and "update_interval" in given:
            why = f"a {self.PART}'s span is known only after reading"
            remedy = f"leave it out: one {self.PART} is read at a time"
            found = f"`update_interval` has no effect with `arrival_time`: {why}"
            yield Problem(found, remedy=remedy, at=("alignment", "update_interval"))
