"""Making tables: their columns and properties. Every commit of them is delta-rs's.

Here: what a table is before it has rows. Not here: rows (lake.py), which columns a table has (assets/schemas.py).
"""

import json
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, Schema

from tidemark.resources.lake.reading import Tables
from tidemark.resources.lake.row_changes import CHANGE_FEED, has_change_feed
from tidemark.resources.lake.table_columns import OtherColumnsError, delta_columns, differences, misfits
from tidemark.resources.machine import writing
from tidemark.resources.places.place import delta_place
from tidemark.resources.tables import STATISTICS

if TYPE_CHECKING:  # control tables must not wait for PySpark
    from pyspark.sql.types import StructType

_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    # A batch that fails is undone by going back to the last commit, however long ago that was.
    "delta.enableExpiredLogCleanup": "false",
    # To open a table is to read its log from the last checkpoint on, each entry by two requests of a store. Delta-rs
    # makes a checkpoint every hundred commits by default.
    "delta.checkpointInterval": "10",
}
_ALL_STATISTICS = {"delta.dataSkippingNumIndexedCols": "-1"}  # not of the first 32 columns alone


class NewTables(Tables):
    """The tables of one pipeline, for reading and making."""

    def create(
        self, table: str, schema: "StructType | pa.Schema", *, may_grow: bool = False, change_feed: bool = False
    ) -> None:
        """Create an empty table, all of whose columns may be null, unless it is there.

        Args:
            table: The table.
            schema: Its columns.
            may_grow: A table that is there may have other columns, but none of another type that is no wider one,
                and none whose name differs in case only: see `reshaping.fit`.
            change_feed: A new table has a change feed; of one that is there `set_change_feed` decides.

        Raises:
            OtherColumnsError: The table is there with other columns.
        """
        wanted = delta_columns(schema)
        ranges = [name for name in STATISTICS.get(table, ()) if name in schema.names]
        statistics = {"delta.dataSkippingStatsColumns": ",".join(ranges)} if ranges else _ALL_STATISTICS
        feed = {CHANGE_FEED: "true"} if change_feed else {}
        with writing(self.path(table)):
            delta = DeltaTable.create(
                **delta_place(self.path(table)),
                schema=Schema.from_json(json.dumps(wanted)),
                mode="ignore",
                configuration=_PROPERTIES | statistics | feed,
            )
        self.opened.keep(table, delta)
        wrong = misfits(delta.schema(), wanted) if may_grow else differences(delta.schema(), wanted)
        if wrong:
            raise OtherColumnsError(table, self.path(table), wrong)

    def set_change_feed(self, table: str, *, on: bool) -> None:
        """Give a table a change feed from the next commit on, or none, in one commit unless it is so already."""
        if has_change_feed(self.opened.seen(table)) != on:
            delta = self.opened.take(table)
            self._committing(table)
            delta.alter.set_table_properties({CHANGE_FEED: str(on).lower()})
            self._committed(table, delta.version())
            self.opened.keep(table, delta)

    def describe(self, table: str, said: str) -> None:
        """Give a table a description that readers see, in one commit of maintenance unless it has it already."""
        delta = self.opened.take(table)
        if (delta.metadata().description or "") != said:
            self._committing(table)
            delta.alter.set_table_description(said)
            self._committed(table, delta.version())
        self.opened.keep(table, delta)

    def _committing(self, table: str) -> None:
        """Stand before every commit, for tests of faults to override."""

    def _committed(self, table: str, version: int) -> None:
        """Stand behind every commit, for tests of faults to override."""
