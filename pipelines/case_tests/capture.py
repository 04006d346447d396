"""`tidemark capture`: a stretch of the log as a file of cases, with the results of judging it alone.

Here: which columns a case needs, values in the place of others, the text of the file, and where its results differ
from what the pipeline gave. Not here: the keys of a file of cases (timeops/cases.py), running a case
(pipelines/case_tests/runs.py).

The state of the pipeline before the stretch is not part of a case: a record may meet another watermark in it, or find
a window open that had closed. Such records are named in the file.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.assets.log.control import END_OF_INPUT, TICK, recorded
from tidemark.assets.log.exclusions import records_between
from tidemark.assets.log.retention import before_seq_of, log_begins_at
from tidemark.assets.questions.asking import ensure_committed
from tidemark.assets.schemas import as_declared, payload_of
from tidemark.pipelines.case_tests.differences import Outcome
from tidemark.pipelines.case_tests.suite import outcome_of
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.cases import DEAD_LETTERS, HELD, JOINS, ORDERED, WINDOWS, parse_cases, text_of
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import did_you_mean
from tidemark.timeops.expressions.tokens import columns_named, mentions, quoted
from tidemark.timeops.expressions.try_expression import as_json
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.values.utc import Instant, us_of

MOST_CAPTURED = 1_000
"""The most records of a case."""
_MOST_NAMED = 10
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_NUMBERS = (T.FloatType, T.DoubleType, T.DecimalType)
_FIRST = datetime(2000, 1, 1)  # noqa: DTZ001 - the text of a time without a zone


@dataclass(frozen=True)
class Captured:
    """A stretch of the log as a file of cases.

    Attributes:
        text: The file.
        records: How many records it has.
        left_out: Records of the stretch that a case cannot hold: they could not be read, or are excluded.
        differing: Records that the pipeline judged in another way, as it knew what came before.
    """

    text: str
    records: int
    left_out: tuple[int, ...]
    differing: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "cases": self.text,
            "records": self.records,
            "left_out": list(self.left_out),
            "differing": list(self.differing),
        }

    def __str__(self) -> str:
        """Return the file."""
        return self.text


def capture(workspace: Workspace, first_seq: int, last_seq: int, redact: Sequence[str] = ()) -> Captured:
    """Make a case of a stretch of the log, both ends included; Spark judges it.

    Args:
        workspace: The pipeline.
        first_seq: The first record.
        last_seq: The last record.
        redact: Columns whose values are replaced: equal ones by equal ones of the same type.

    Raises:
        SpecError: There is no such stretch, it is too long, or a column cannot be redacted.
        TidemarkError: Nothing is committed yet.
    """
    ensure_committed(workspace)
    _check_range(workspace, first_seq, last_seq)
    payload = payload_of(workspace)
    columns = _columns_asked(workspace.spec, payload.names)
    _check_redacted(workspace.spec, payload, redact)
    rows = _rows(workspace, payload, [*dict.fromkeys([*columns, *redact])], first_seq, last_seq)
    seqs = {row[c.SEQ] for row in rows}
    left_out = [seq for seq in range(first_seq, last_seq + 1) if seq not in seqs]
    if not rows:
        raise SpecError(
            f"No record from {first_seq:,} to {last_seq:,} of {workspace.spec.name} can be in a case.",
            expected="a record that could be read, and is not excluded",
        )
    records = _Records(workspace.spec, payload, tuple(redact), rows, _ticks(workspace, first_seq, last_seq))
    begin = f"records {first_seq:,} to {last_seq:,} of {workspace.spec.name}, judged alone"
    ending = "flush" if _is_flushed(workspace, last_seq) else "hold"
    shell = "\n".join([*_case(begin, records, ending), "    expect: {watermark: none}", ""])
    outcome = outcome_of(
        workspace.file, parse_cases(shell, workspace.spec, file="the captured case"), workspace.spark
    )
    kept_from = before_seq_of(workspace, tables.DEAD_LETTERS)
    differing = _differing_seqs(workspace, rows, outcome, max(first_seq, kept_from), last_seq)
    notes = _notes(first_seq, last_seq, left_out, differing, kept_from=kept_from)
    lines = [*notes, *_case(begin, records, ending)]
    text = "\n".join([*lines, *_expected(workspace.spec, outcome), ""])
    return Captured(text, len(rows), tuple(left_out), tuple(differing))


def _check_range(workspace: Workspace, first_seq: int, last_seq: int) -> None:
    end = workspace.progress.processed_end()
    begin = log_begins_at(workspace)
    if not begin <= first_seq <= last_seq < end:
        raise SpecError(
            f"--seq {first_seq}..{last_seq}: the log of {workspace.spec.name} has no such stretch.",
            expected=f"two numbers from {begin:,} to {end - 1:,}, the smaller one first",
        )
    if last_seq - first_seq >= MOST_CAPTURED:
        raise SpecError(
            f"--seq {first_seq}..{last_seq}: {last_seq - first_seq + 1:,} records are too many for a case.",
            expected=f"at most {MOST_CAPTURED:,}",
            remedy="choose the records around the one that is meant",
        )


def _columns_asked(spec: Spec, payload: Sequence[str]) -> list[str]:
    """Return the payload columns that an expression of the spec names, or all where rows of results have them all."""
    if any(window.top is not None for window in spec.event_windows):
        return [*payload]
    columns = [column for text in _expressions(spec) for column in columns_named(text, payload)]
    return [name for name in payload if name in columns]


def _expressions(spec: Spec) -> Iterator[str]:
    yield from _expressions_of_time(spec)
    for window in spec.windows:
        if window.input is None:
            yield from window.event_expressions
    for columns in spec.join_columns.values():
        yield from map(quoted, [*columns.left, *(name for name, _ in columns.right)])


def _expressions_of_time(spec: Spec) -> Iterator[str]:
    for source in spec.sources:
        yield from filter(None, [source.timestamp_by, source.arrival_time])
    yield from filter(None, [spec.time.timestamp_by])


def _check_redacted(spec: Spec, payload: T.StructType, redact: Sequence[str]) -> None:
    for name in redact:
        if name not in payload.names:
            raise SpecError(
                f"--redact {name}: {spec.name} has no column `{name}`.",
                expected=f"one of {', '.join(payload.names)}",
                remedy=did_you_mean(name, payload.names),
            )
        if any(columns_named(text, [name]) for text in _expressions_of_time(spec)):
            raise SpecError(
                f"--redact {name}: times are computed from this column, so the case would be another one.",
                expected="a column that no `timestamp_by` or `arrival_time` names",
            )
        kind = payload[name].dataType
        if _replacement(kind, name, 0) is None:
            raise SpecError(
                f"--redact {name}: there is no replacement for values of {kind.simpleString().upper()}.",
                expected="a column of texts, numbers, days or times",
            )


def _replacement(kind: T.DataType, name: str, number: int) -> Any:
    """Return a value in the place of another one, the same for the same number; None where there is no such value."""
    if isinstance(kind, T.StringType):
        return f"{name}_{number + 1}"
    if isinstance(kind, _WHOLE):
        return number + 1
    if isinstance(kind, _NUMBERS):
        return Decimal(number + 1)
    if isinstance(kind, T.DateType):
        return (_FIRST.date() + timedelta(days=number)).isoformat()
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        zone = "Z" if isinstance(kind, T.TimestampType) else ""
        return (_FIRST + timedelta(seconds=number)).isoformat() + zone
    return None


Row = Mapping[str, Any]


def _rows(
    workspace: Workspace, payload: T.StructType, names: Sequence[str], first_seq: int, last_seq: int
) -> list[Row]:
    """Return the records of the stretch that could be read, with the values of some columns as JSON."""
    zone = workspace.rules.sources[0].time_zone
    frame = as_declared(records_between(workspace, first_seq, last_seq + 1), payload, zone)
    record_columns = [c.SEQ, f"unix_micros({c.ARRIVAL}) AS arrival", c.SOURCE, c.SPLIT, c.FILE]
    values = f"{as_json(*map(quoted, names))} AS payload" if names else "'{}' AS payload"
    records = frame.where(F.col(c.MALFORMED).isNull()).selectExpr(*record_columns, values).orderBy(c.SEQ).collect()
    return [row.asDict() | {"payload": json.loads(row["payload"], parse_float=Decimal)} for row in records]


def _ticks(workspace: Workspace, first_seq: int, last_seq: int) -> list[tuple[int, str]]:
    """Return the ticks in a stretch: after which record each comes, and its clock."""
    if not workspace.spec.heeds_ticks:
        return []
    items = [item for item in recorded(workspace, TICK) if first_seq <= item["_after_seq"] <= last_seq]
    return [(int(item["_after_seq"]), _instant(us_of(item["clock"]))) for item in items]


def _is_flushed(workspace: Workspace, last_seq: int) -> bool:
    return any(item["_after_seq"] == last_seq for item in recorded(workspace, END_OF_INPUT))


def _instant(us: int) -> str:
    return f"{Instant(us)}Z".replace(" ", "T")


@dataclass(frozen=True)
class _Records:
    """The records of a case.

    Attributes:
        spec: The spec.
        payload: The payload columns.
        redact: The columns with replaced values.
        rows: The records of the log.
        ticks: After which of them a tick comes, and its clock.
    """

    spec: Spec
    payload: T.StructType
    redact: Sequence[str]
    rows: Sequence[Row]
    ticks: Sequence[tuple[int, str]]

    def lines(self) -> Iterator[tuple[int, str]]:
        """Return each record with its text in the file."""
        numbers: dict[str, dict[str, int]] = defaultdict(dict)
        sources = {source.name: source for source in self.spec.sources}
        for row in self.rows:
            values = {name: value for name, value in row["payload"].items() if value is not None}
            for name in self.redact:
                if name in values:
                    number_of = numbers[name]
                    number = number_of.setdefault(json.dumps(values[name], default=str), len(number_of))
                    values[name] = _replacement(self.payload[name].dataType, name, number)
            source = sources[row[c.SOURCE]]
            if len(sources) > 1:
                values[c.SOURCE] = row[c.SOURCE]
            if source.split is None and row[c.SPLIT] is not None:
                values[c.SPLIT] = row[c.SPLIT]
            if source.arrival_time is None and row["arrival"] is not None:
                values[c.ARRIVAL] = _instant(row["arrival"])
            if mentions(source.arrival_time or "", c.FILE):
                values[c.FILE] = row[c.FILE]
            yield row[c.SEQ], f"{_flow(values)}  # record {row[c.SEQ]:,}"


def _case(name: str, records: _Records, ending: str) -> Iterator[str]:
    yield "cases:"
    yield f"  - name: {json.dumps(name)}"
    lines = list(records.lines())
    if not records.ticks:
        yield "    records:"
        yield from (f"      - {line}" for _, line in lines)
    else:
        yield "    steps:"
        for tick_seq, clock in records.ticks:
            step_lines = [line for seq, line in lines if seq <= tick_seq]
            lines = lines[len(step_lines) :]
            yield from _step(step_lines, clock)
        yield from _step([line for _, line in lines], None)
    yield f"    end_of_input: {ending}"


def _step(lines: Sequence[str], clock: str | None) -> Iterator[str]:
    yield "      - records:" if lines else "      - records: []"
    yield from (f"          - {line}" for line in lines)
    if clock is not None:
        yield f"        tick: {clock}"


def _expected(spec: Spec, outcome: Outcome) -> Iterator[str]:
    yield "    expect:"
    yield f"      watermark: {text_of(outcome.watermark)}"
    shown: dict[str, list[dict[str, Any]]] = {}
    if spec.outputs.ordered_events:
        over = [c.TIMELINE] if spec.time.over else []
        for table in (ORDERED, HELD):
            shown[table] = [_some(row, [c.SEQ, c.TIMESTAMP, *over, c.ADJUSTED_BY]) for row in outcome.tables[table]]
    letters = [c.SEQ, "stage", "reason", "window_name", "lateness_us"]
    shown[DEAD_LETTERS] = [_some(row, letters) for row in outcome.tables[DEAD_LETTERS]]
    for window in spec.windows:
        table = WINDOWS + window.name
        rows = outcome.tables[table]
        shown[table] = [_some(row, _result_columns(window, row), whole=True) for row in rows]
    for join in spec.joins:
        of_join = [*spec.join_columns[join.name].names, *(["_revision"] if join.revises else [])]
        table = JOINS + join.name
        shown[table] = [_some(row, of_join, whole=True) for row in outcome.tables[table]]
    for table, rows in shown.items():
        yield f"      {table}:" if rows else f"      {table}: []"
        yield from (f"        - {_flow(row)}" for row in rows)


def _result_columns(window: WindowSpec, columns: Iterable[str]) -> list[str]:
    revision = ["_revision"] if window.revises else []
    return [*window.key_columns, *window.event_columns(columns), *window.aggregates, *revision]


def _some(row: Row, names: Iterable[str], *, whole: bool = False) -> dict[str, Any]:
    """Return some columns of a row; unless all are wanted, without empty ones."""
    return {name: row[name] for name in names if whole or row.get(name) not in (None, [])}


def _flow(value: Any) -> str:
    """Return a value as a flow of YAML, which every parser reads alike."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: {_flow(v)}' for name, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float) and isfinite(value):
        value = Decimal(repr(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        text = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    elif isinstance(value, datetime | Instant):
        text = text_of(value)
    else:
        text = value.isoformat() if isinstance(value, date) else str(value)
    return json.dumps(text, ensure_ascii=False)


def _differing_seqs(
    workspace: Workspace, rows: Sequence[Row], outcome: Outcome, first_seq: int, last_seq: int
) -> list[int]:
    """Return the records that the pipeline judged in another way than the case does."""
    of = [(c.SEQ, ">=", first_seq), (c.SEQ, "<=", last_seq)]
    version = workspace.base_of(tables.DEAD_LETTERS)
    columns = [c.SEQ, "reason", "window_name"]
    letters = workspace.lake.rows(tables.DEAD_LETTERS, version, columns=columns, filters=of).to_pylist()
    then, alone = defaultdict(set), defaultdict(set)
    for letter in letters:
        then[letter[c.SEQ]].add((letter["reason"], letter["window_name"]))
    for letter in outcome.tables[DEAD_LETTERS]:
        if letter[c.SEQ] is not None:
            alone[rows[letter[c.SEQ]][c.SEQ]].add((letter["reason"], letter["window_name"]))
    compared = [row[c.SEQ] for row in rows if row[c.SEQ] >= first_seq]
    return [seq for seq in compared if then[seq] != alone[seq]]


def _notes(
    first_seq: int, last_seq: int, left_out: Sequence[int], differing: Sequence[int], *, kept_from: int
) -> Iterator[str]:
    yield f"# Records {first_seq} to {last_seq} of the log, which are numbered from 0 here, by `tidemark capture`."
    if first_seq:
        yield "# What is expected is what comes of judging them alone: what came before is not known here."
    if differing:
        yield f"# The pipeline judged {_records_in_words(differing)} in another way."
    if first_seq < kept_from:
        yield f"# How it judged records before {kept_from} is not known: `retention` has removed their dead letters."
    elif first_seq and not differing:
        yield "# The pipeline refused the same records for the same reasons."
    if left_out:
        yield f"# Left out, as they could not be read or are excluded: {_records_in_words(left_out)}."


def _records_in_words(seqs: Sequence[int]) -> str:
    ending = f" and {len(seqs) - _MOST_NAMED:,} more" if len(seqs) > _MOST_NAMED else ""
    return f"record{'s' if len(seqs) > 1 else ''} {', '.join(map(str, seqs[:_MOST_NAMED]))}{ending}"
