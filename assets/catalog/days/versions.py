"""Versions of days of window tables, as Dagster's tags: of a day's rows, and of the spec that computed them.

Here: what a day's materialization says of both, by which Dagster finds days that are stale, or did not change. Not
here: which part of a spec a version is of (timeops/spec/versions.py), reporting days
(assets/catalog/days/partitions.py).

The data version is a digest of the rows alone. The code version is that of the oldest rows of the day: a live run
that adds rows by a changed spec leaves the day stale until it is computed again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache

import dagster as dg
import numpy as np
import pyarrow as pa

from tidemark.assets.catalog.days.counts import is_plain_day, together
from tidemark.assets.catalog.runs import key
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan, RebuildInput
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.row_hashes import row_hashes
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.spec.versions import CodeVersions, code_versions
from tidemark.timeops.values.utc import begin_of, us_of

DATA_VERSION, CODE_VERSION = "dagster/data_version", "dagster/code_version"
_BY_US = {"dagster/data_version_is_user_provided": "true"}
_UNKNOWN = "unknown"

Tags = Mapping[str, str]


UPSTREAM_OF_DAYS = ("window_results", tables.BATCHES)
"""The stages upstream of the days of all windows: days are computed once the batch of the same run, or backfill, is
committed."""


@dataclass
class _Rows:
    """The rows of a day: the sum of their hashes, how many they are, and the oldest batch that wrote one."""

    hashed: np.uint64 = field(default=np.uint64(0))
    count: int = 0
    oldest: int | None = None

    @property
    def version(self) -> str:
        return f"{int(self.hashed):016x}-{self.count}"


def versions_of(spec: Spec) -> CodeVersions:
    """Return the code versions of a spec, computed once for each."""
    return _versions_of(spec.canonical_json(), spec.partitions.time_zone)


@lru_cache(maxsize=64)
def _versions_of(text: str, time_zone: str) -> CodeVersions:
    """Return the code versions of a spec as `log_control` has it; days go by the zone of now."""
    spec = Spec.model_validate(json.loads(text))
    return code_versions(
        spec.model_copy(update={"partitions": spec.partitions.model_copy(update={"time_zone": time_zone})})
    )


def stage_version(spec: Spec, name: str, plan: Plan) -> str:
    """Return the data version of what a batch wrote of a stage: each batch writes something else.

    Only the stages upstream of days keep their version while the rules of time do: a run reports each day
    that it changed, and no other day is stale because of it.
    """
    return versions_of(spec).time if name in UPSTREAM_OF_DAYS else str(plan.batch_id)


def data_version(version: str) -> Tags:
    """Return the tags of a materialization without a run, whose data version is known."""
    return {DATA_VERSION: version, **_BY_US}


def day_tags(workspace: Workspace, window: WindowSpec, days: Iterable[str]) -> Mapping[str, Tags]:
    """Return the tags of a window's days as of the last commit; none for a day that not every zone can name."""
    table = tables.window_table(window.name)
    by_day = _rows_of(workspace, table, sorted({*filter(is_plain_day, days)}))
    by_fingerprint = _recorded(workspace, window)
    is_of_one = len({*by_fingerprint.values()}) == 1
    inputs = {key(workspace.file, stage): versions_of(workspace.spec).time for stage in UPSTREAM_OF_DAYS}
    if window.input is not None:
        versions = versions_of(workspace.spec)
        of_input = {**versions.windows, **versions.joins}[window.input]
        inputs[key(workspace.file, tables.result_table(window.input, workspace.spec))] = of_input
    now = versions_of(workspace.spec).windows[window.name]
    codes = {} if is_of_one else _codes(workspace, window, by_fingerprint, by_day.values())
    return {
        day: {
            CODE_VERSION: codes.get(rows.oldest, now),
            **data_version(rows.version),
            **_inputs(inputs),
        }
        for day, rows in by_day.items()
    }


def stale_days(workspace: Workspace, window: WindowSpec, days: Iterable[str]) -> set[str]:
    """Return the days that have rows of another code version than the window has now."""
    by_fingerprint = _recorded(workspace, window)
    if len({*by_fingerprint.values()}) == 1:
        return set()
    stored = _rows_of(workspace, tables.window_table(window.name), sorted({*filter(is_plain_day, days)}))
    now, codes = (
        versions_of(workspace.spec).windows[window.name],
        _codes(workspace, window, by_fingerprint, stored.values()),
    )
    return {day for day, rows in stored.items() if codes.get(rows.oldest, now) != now}


def _inputs(versions: Mapping[dg.AssetKey, str]) -> dict[str, str]:
    """Return what a day was made of. A run reports each day that it changed, so no day waits for news of these."""
    tags = dict[str, str]()
    for asset, version in versions.items():
        tags[f"dagster/input_data_version/{asset.to_user_string()}"] = version
        tags[f"dagster/input_event_pointer/{asset.to_user_string()}"] = "NULL"
    return tags


def _rows_of(workspace: Workspace, table: str, days: Sequence[str]) -> Mapping[str, _Rows]:
    """Return what versions need to know of the rows of days, from one look at the days' files."""
    by_day = {day: _Rows() for day in days}
    zone, version = workspace.spec.partitions.time_zone, workspace.base_of(table)
    names = [name for name in workspace.lake.dataset(table, version).schema.names if name != c.BATCH]
    for first, last in together([*map(date.fromisoformat, days)]) if days else ():
        span = [first + timedelta(days=number) for number in range((last - first).days + 2)]
        begins = np.array([us_of(begin_of(day, zone)) for day in span])
        of_span: Filters = [
            ("window_start", ">=", begin_of(span[0], zone)),
            ("window_start", "<", begin_of(span[-1], zone)),
        ]
        for piece in pieces(workspace.lake, table, version, [*names, c.BATCH], of_span):
            starts = np.asarray(piece["window_start"].cast(pa.int64()))
            places, hashes = np.searchsorted(begins, starts, side="right") - 1, row_hashes(piece.select(names))
            batches = np.asarray(piece[c.BATCH])
            for place in np.unique(places):
                day, here = span[place].isoformat(), places == place
                if day in by_day:
                    _add(by_day[day], hashes[here], int(batches[here].min()))
    return by_day


def _add(rows: _Rows, hashes: np.ndarray[tuple[int], np.dtype[np.uint64]], oldest: int) -> None:
    rows.hashed = np.add(rows.hashed, hashes.sum(dtype=np.uint64), dtype=np.uint64)
    rows.count += hashes.size
    rows.oldest = oldest if rows.oldest is None else min(rows.oldest, oldest)


def _recorded(workspace: Workspace, window: WindowSpec) -> Mapping[str, str]:
    """Return the code version of a window under each spec of the log, by the fingerprint of the spec."""
    spec, versions = workspace.spec, dict[str, str]()
    for text in (*workspace.spec_items, spec.canonical_json()):
        windows = _versions_of(text, spec.partitions.time_zone).windows
        name = window.name if window.name in windows else window.was or ""
        versions[Spec.model_validate(json.loads(text)).fingerprint()] = windows.get(name, _UNKNOWN)
    return versions


def _codes(
    workspace: Workspace, window: WindowSpec, by_fingerprint: Mapping[str, str], days: Iterable[_Rows]
) -> Mapping[int | None, str]:
    """Return the code version of the rows of batches: of rows before a rebuild that of the rebuild."""
    rebuilt = _rebuilt(workspace, window)
    commits = {commit.batch_id: commit.plan.fingerprint for commit in workspace.batches.every_commit()}
    return {
        oldest: by_fingerprint.get(commits.get(max(oldest, rebuilt), ""), _UNKNOWN)
        for oldest in (rows.oldest for rows in days)
        if oldest is not None
    }


def _rebuilt(workspace: Workspace, window: WindowSpec) -> int:
    """Return the batch that last made a window from the whole log; -1 for none."""
    last_rebuild = workspace.batches.last_rebuild()
    alone = [
        commit.batch_id
        for commit in workspace.batches.history("rebuild")
        if window.name in (batch_input := RebuildInput.of(commit.plan)).windows and not batch_input.renamed
    ]
    return max([-1, *alone, *([last_rebuild.batch_id] if last_rebuild is not None else [])])
