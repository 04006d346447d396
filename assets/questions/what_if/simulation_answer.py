"""The answer of a simulation: today and each setting side by side, then the rows that would change most.

Here: its values, as JSON and as a text. Not here: judging the log (assets/questions/what_if/simulation.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.assets.questions.what_if.preview import RowChange, TableRows
from tidemark.assets.questions.words import AnswerInParts, aligned
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ

_MOST_ROWS = 5
_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Simulated:
    """The outcome of a setting, or for no settings what the tables have.

    Attributes:
        settings: Keys and values, as for `--set`; empty for today.
        dead_letters: Numbers of dead letters by reason.
        windows: Numbers of rows by window, in comparison with the tables.
        notes: Sentences about it that a reader needs.
        joins: Numbers of rows by join, in comparison with the tables.
    """

    settings: tuple[str, ...]
    dead_letters: Mapping[str, int]
    windows: Mapping[str, TableRows]
    notes: tuple[str, ...] = ()
    joins: Mapping[str, TableRows] = field(default_factory=dict)

    @property
    def tables(self) -> Mapping[str, TableRows]:
        """The rows of all windows and joins; no window has the name of a join."""
        return {**self.windows, **self.joins}

    @property
    def changed(self) -> int:
        """Rows of all windows and joins that would be new, gone or other."""
        return sum(rows.changed for rows in self.tables.values())

    def to_dict(self) -> dict[str, Any]:
        """Return one element of what `tidemark simulate --json` prints."""
        return {
            "set": list(self.settings),
            "dead_letters": dict(self.dead_letters),
            "windows": _rows_as_dict(self.windows),
            "joins": _rows_as_dict(self.joins),
            "largest": {
                name: [_change_as_dict(row) for row in rows.rows] for name, rows in self.tables.items() if rows.rows
            },
            "notes": list(self.notes),
        }


def _rows_as_dict(rows: Mapping[str, TableRows]) -> dict[str, Any]:
    return {
        name: {"rows": table.after, "new": table.new, "gone": table.gone, "changed": table.other}
        for name, table in rows.items()
    }


def _change_as_dict(row: RowChange) -> dict[str, Any]:
    return {"key": dict(row.key), "before": row.before, "after": row.after, "by": row.by}


@dataclass(frozen=True)
class Simulation(AnswerInParts):
    """The answers for today and for each setting, side by side.

    Attributes:
        name: The pipeline.
        records: The records of the log that were judged for each setting.
        today: What the tables have.
        others: What each setting would make of the log.
    """

    name: str
    records: int
    today: Simulated
    others: tuple[Simulated, ...]

    @property
    def results(self) -> tuple[Simulated, ...]:
        """Today first, then each setting."""
        return (self.today, *self.others)

    def parts(self) -> Iterator[Iterable[str]]:
        """Show the numbers side by side, then for each setting the rows that would change most."""
        yield from (_head(self), _numbers(self), _notes(self))
        yield from (_largest(label, result) for label, result in _labelled(self) if result.settings)

    def to_dict(self) -> list[dict[str, Any]]:
        """Return what `tidemark simulate --json` prints: a list, today first."""
        return [result.to_dict() for result in self.results]


def _labelled(simulation: Simulation) -> list[tuple[str, Simulated]]:
    """Return each answer with the head of its column: the setting itself where it is short, else a letter."""
    settings = [" ".join(setting.settings) for setting in simulation.others]
    are_short = all(len(text) <= 40 for text in settings) and len(settings) <= 3
    labels = settings if are_short else [_NAMES[number % 26] for number in range(len(settings))]
    return list(zip(["today", *labels], simulation.results, strict=True))


def _head(simulation: Simulation) -> Iterator[str]:
    judged = f"{simulation.records:,} records of the log judged with each setting"
    yield f"{simulation.name}: {judged}; nothing was written"
    for label, result in _labelled(simulation)[1:]:
        if label != " ".join(result.settings):
            yield f"  {label}: {' '.join(result.settings)}"


def _numbers(simulation: Simulation) -> Iterator[str]:
    results = _labelled(simulation)
    reasons = sorted({reason for _, result in results for reason in result.dead_letters})
    rows = [("dead letters", *(f"{sum(result.dead_letters.values()):,}" for _, result in results))]
    rows += [
        (f"  {reason}", *(f"{result.dead_letters.get(reason, 0):,}" for _, result in results)) for reason in reasons
    ]
    for name in dict.fromkeys(name for _, result in results for name in result.tables):
        tables = [result.tables.get(name) for _, result in results]
        rows.append((f"rows of {name}", *("" if table is None else f"{table.after:,}" for table in tables)))
        for word, of in (("new", "new"), ("gone", "gone"), ("changed", "other")):
            counts = ["" if table is None else f"{getattr(table, of):,}" for table in tables[1:]]
            if any(count not in ("", "0") for count in counts):
                rows.append((f"  {word}", "", *counts))
    yield from aligned(("", *(label for label, _ in results)), rows)


def _notes(simulation: Simulation) -> Iterator[str]:
    for label, result in _labelled(simulation):
        for note in result.notes:
            yield f"{label}: {note}"
        back = {name: table.reopened for name, table in result.tables.items() if table.reopened}
        for name, count in back.items():
            rows = f"{count:,} rows of {name} that were published"
            noun = "events" if name in result.joins else "windows"
            yield f"{label}: {rows} would not be final until their {noun} close"


def _largest(label: str, result: Simulated) -> Iterator[str]:
    """Yield the rows of each window and join that would change most."""
    tables = [rows for rows in result.tables.values() if rows.rows]
    if not tables:
        if not result.notes:
            yield f"{label}: no result would change"
        return
    yield f"The largest differences with {label}"
    for rows in sorted(tables, key=lambda rows: (-rows.changed, rows.name)):
        yield f"  {rows.name}, {rows.changed:,} of {max(rows.before, rows.after):,} rows differ"
        for row in rows.rows[:_MOST_ROWS]:
            yield f"    {_change(row)}"


def _change(row: RowChange) -> str:
    owner = _whose(row.key)
    if row.before is None:
        return f"{owner}: new, {_values(row.after or {})}"
    if row.after is None:
        return f"{owner}: gone, it was {_values(row.before)}"
    columns = [name for name in dict.fromkeys([*row.before, *row.after]) if not name.startswith("_")]
    names = [name for name in columns if row.before.get(name) != row.after.get(name)]
    names = names or [RIGHT_SEQ]  # a partner in a join that has the same values
    return f"{owner}: {', '.join(f'{n} {_value(row.before.get(n))} → {_value(row.after.get(n))}' for n in names)}"


def _whose(key: Mapping[str, Any]) -> str:
    """Return the window and group of a row; of a row of a join its event, or both events of a pair."""
    if "window_start" not in key:
        return " and ".join(f"event {key[seq]:,}" for seq in (LEFT_SEQ, RIGHT_SEQ) if key.get(seq) is not None)
    group = {name: value for name, value in key.items() if name not in ("window_start", "window_end")}
    start = str(key["window_start"]).replace("T", " ").replace(".000Z", "")
    return f"{start} {', '.join(f'{name} {_value(value)}' for name, value in group.items())}".strip()


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items() if not name.startswith("_"))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return "null" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
