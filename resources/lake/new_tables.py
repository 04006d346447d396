"""The making of tables: their columns and properties. Every commit of them is delta-rs's.

Here: tables before they have rows. Not here: rows (lake.py), the choice of columns (assets/schemas.py).
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
    # To open a table is to read its log from the last checkpoint on, with two requests of a store for each entry. By
    # default delta-rs makes a checkpoint every hundred commits.
    "delta.checkpointInterval": "10",
}
_ALL_STATISTICS = {"delta.dataSkippingNumIndexedCols": "-1"}  # not only of the first 32 columns


class NewTables(Tables):
    """Reads the tables of one pipeline, and makes new ones."""

    def create(
        self, table: str, schema: "StructType | pa.Schema", *, may_grow: bool = False, change_feed: bool = False
    ) -> None:
        """Create an empty table whose columns may all be null, unless it exists.

        Args:
            table: The table.
            schema: Its columns.
            may_grow: An existing table may have other columns, and types that can be widened to the wanted ones. No
                name may differ in case only: see `reshaping.fit`.
            change_feed: A new table has a change feed; for an existing one `set_change_feed` decides.

        Raises:
            OtherColumnsError: The table exists with other columns.
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
        """Switch the change feed of a table on or off from the next commit on, in one commit unless it is so."""
        if has_change_feed(self.opened.seen(table)) != on:
            delta = self.opened.take(table)
            self._committing(table)
            delta.alter.set_table_properties({CHANGE_FEED: str(on).lower()})
            self._committed(table, delta.version())
            self.opened.keep(table, delta)

    def describe(self, table: str, said: str) -> None:
        """Set a table's description, which readers see, in one commit of maintenance unless it has it already."""
        delta = self.opened.take(table)
        if (delta.metadata().description or "") != said:
            self._committing(table)
            delta.alter.set_table_description(said)
            self._committed(table, delta.version())
        self.opened.keep(table, delta)

    def _committing(self, table: str) -> None:
        """Do nothing before every commit: tests of faults override this."""

    def _committed(self, table: str, version: int) -> None:
        """Do nothing after every commit: tests of faults override this."""
