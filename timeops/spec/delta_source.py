"""A Delta table as a source: which of its versions are read, and what becomes of rows that it changes.

Here: the keys of `kind: delta`. Not here: the keys that every source has
(source.py), reading (resources/sources/).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from tidemark.timeops.expressions.tokens import top_level_names
from tidemark.timeops.problems import Problem, ProblemsError, show
from tidemark.timeops.spec.fields import Instant, Location, WholeNumber, one_of
from tidemark.timeops.spec.source import SOURCE_KINDS, StoredSource
from tidemark.timeops.utc import us_of

CHANGE_TYPE = "_change_type"
"""With `changes: rows`, the column of what a record does: insert, delete, update_preimage or update_postimage."""

Changes = Literal["fail", "follow", "ignore", "rows"]


def _folder(path: str) -> str:
    wild = [sign for sign in "*?[" if sign in path]
    if wild:
        found = f"found {show(path)}, which holds {wild[0]!r}"
        raise ProblemsError([Problem(found, expected="the folder of one Delta table", remedy="name the table")])
    return path


def _version(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ProblemsError([Problem(f"found {show(value)}", expected="a version of the table, from 0")])
    return value


class DeltaSource(StoredSource):
    """A Delta table, read version by version."""

    PART: ClassVar[str] = "version"
    ARRIVALS: ClassVar[str] = "times of commits"

    kind: Annotated[Literal["delta"], one_of(*SOURCE_KINDS)] = Field(
        description="Kind of source: files, delta or kafka."
    )
    path: Annotated[Location, AfterValidator(_folder)] = Field(
        description="Folder of the table, relative to the spec file, such as ../bronze/orders, or its URL in a "
        "store, such as s3://bucket/bronze/orders."
    )
    changes: Annotated[Changes, one_of(*get_args(Changes))] = Field(
        default="fail",
        description="A commit that updates or deletes rows: fail (nothing after it is read), follow (the log is "
        "corrected, and what was computed of it is made anew; best for results of another pipeline), ignore (it is "
        "passed over whole), or rows (the table's change data feed is read, with `_change_type` as a column).",
    )
    start_version: (
        Annotated[
            int,
            BeforeValidator(_version),
            WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}),
        ]
        | None
    ) = Field(
        default=None,
        description="Read what this version and later ones add; default: first the whole table as it is. In a "
        "pipeline that has read earlier versions: pass over those before it.",
    )
    start_timestamp: Instant | None = Field(
        default=None, description="Read what versions add that were committed at this instant or later. UTC."
    )
    max_versions: WholeNumber = Field(default=1_000, description="Most versions in one ingestion.")

    @property
    def added_columns(self) -> Mapping[str, str]:
        """The column that says with `changes: rows` what was done to a row."""
        return {CHANGE_TYPE: "STRING"} if self.changes == "rows" else {}

    @property
    def start_us(self) -> int | None:
        """`start_timestamp` in microseconds since the epoch."""
        return None if self.start_timestamp is None else us_of(self.start_timestamp)

    def _own_problems(self) -> Iterator[Problem]:
        if self.start_version is not None and self.start_timestamp is not None:
            found = "`start_version` and `start_timestamp` both say where to start"
            yield Problem(found, "one of them", at=("start_timestamp",))
        names = {*top_level_names(self.columns), *self.rename.values()}
        if self.changes == "rows" and CHANGE_TYPE in {name.lower() for name in names}:
            found = f"`{CHANGE_TYPE}` is the column that `changes: rows` adds"
            yield Problem(found, remedy="leave it out", at=("schema",))
