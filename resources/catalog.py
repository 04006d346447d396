"""Names of a pipeline's tables in a catalog of Spark, and views of them as of the last commit.

Here: which name shows which table, and moving views. Not here: when views are moved (assets/), and the catalog of a
session, which its settings decide.

A view holds the version that a commit names as a number. No query could find it: the rows of a batch at work may
already have replaced others. After a commit the views are moved one after the other, `batches` last. So all of them
show the batch that `batches` names, unless a process died in between: then the next process moves them.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.resources import tables
from tidemark.resources.machine import machine_failure
from tidemark.resources.places.place import in_delta
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import TidemarkError, first_line
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.spec import Catalog, Spec

if TYPE_CHECKING:  # the command line must not wait for PySpark
    from pyspark.sql import SparkSession

SESSION_CATALOG = "spark_catalog"
_BATCH, _FOLDER = "tidemark.batch", "tidemark.folder"
_NOT_THERE = ("CATALOG_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE")
_UNREACHABLE = ("TTransportException", "Unable to instantiate", "HiveMetaStoreClient", "Connection refused")
_DENIED = ("permission denied", "permission_denied", "access denied", "not authorized", "no privilege", "forbidden")


class CatalogError(TidemarkError):
    """The catalog cannot hold the names; tables and commits are unchanged."""


@dataclass(frozen=True)
class Registered:
    """The names of a pipeline under a schema, and the commit that the views show; None before the first."""

    schema: str
    names: tuple[str, ...]
    batch_id: int | None


def names_of(workspace: Workspace) -> dict[str, str]:
    """Return the name of each public table in a catalog, `batches` last: `windows_by_hour` for `windows/by_hour`."""
    of_events = (tables.ORDERED_EVENTS, tables.HELD_EVENTS) if workspace.spec.outputs.ordered_events else ()
    public = (tables.RAW_EVENTS, *of_events, tables.DEAD_LETTERS, tables.WATERMARKS, *workspace.result_tables)
    return {table: _name_of(table) for table in (*public, tables.BATCHES)}


def _name_of(table: str) -> str:
    return table.replace("/", "_")


def full_name(spec: Spec, table: str) -> str | None:
    """Return the name that SQL knows a table by, such as `hive.quakes.raw_events`; None without `catalog`."""
    catalog = spec.catalog
    return None if catalog is None else f"{catalog.name}.{catalog.schema_name or spec.name}.{_name_of(table)}"


def committed_view(name: str) -> str:
    """Return the name of the view that shows a table as of the last commit."""
    return f"{name}_committed"


def register(workspace: Workspace, catalog: Catalog) -> Registered:
    """Register the tables of a pipeline under their names, and let the views show the last commit.

    Raises:
        CatalogError: The catalog is missing, is not permanent, refuses, or has other objects of these names.
    """
    schema = f"{quoted(catalog.name)}.{quoted(catalog.schema_name or workspace.spec.name)}"
    with _in_words(schema):
        return _Names(workspace, workspace.spark, schema).register()


def keep_names(workspace: Workspace) -> None:
    """Let the views show the last commit, where the spec asks for a catalog.

    Raises:
        CatalogError: As for `register`.
    """
    if workspace.spec.catalog is not None:
        register(workspace, workspace.spec.catalog)


@dataclass(frozen=True)
class _Names:
    """The names of one pipeline under one schema."""

    workspace: Workspace
    spark: "SparkSession"
    schema: str

    def register(self) -> Registered:
        """Register the tables, as the function `register` does."""
        self._refuse_names_that_do_not_last()
        if not self.spark.catalog.databaseExists(self.schema):
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")
        existing_names = {row[1] for row in self.spark.sql(f"SHOW TABLES IN {self.schema}").collect()}
        names = names_of(self.workspace)
        newest = committed_view(names[tables.BATCHES])
        moved = self._properties(newest) if newest in existing_names else {}
        if moved.get(_FOLDER) != self._folder(tables.BATCHES):  # the schema may be another user's
            self._refuse_all_taken(names, existing_names)
        last = self.workspace.batches.last_commit() if self.workspace.exists else None
        if last is None:
            return Registered(self.schema, (), None)
        # Otherwise the views show this commit already: `batches` is moved last.
        if (moved.get(_FOLDER), moved.get(_BATCH)) != (self._folder(tables.BATCHES), str(last.batch_id)):
            for table, name in names.items():
                if name not in existing_names:
                    self._name(table, name)
            for table, name in names.items():
                self._move(table, name, last.batch_id, last.table_versions.get(table, 0))
        return Registered(self.schema, tuple(names.values()), last.batch_id)

    def _refuse_all_taken(self, names: Mapping[str, str], existing_names: Collection[str]) -> None:
        """Refuse names of other objects before any name is registered, so that no view is left half way."""
        for table, name in names.items():
            for new_name, is_view in ((name, False), (committed_view(name), True)):
                if new_name in existing_names:
                    self._refuse_taken(new_name, is_view=is_view, folder=self._folder(table))

    def _folder(self, table: str) -> str:
        return in_delta(self.workspace.lake.path(table).absolute())

    def _name(self, table: str, name: str) -> None:
        folder = literal(self._folder(table))
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS {self.schema}.{quoted(name)} USING delta LOCATION {folder}")

    def _move(self, table: str, name: str, batch_id: int, version: int) -> None:
        """Let a view show a version; `batches`, the log of commits, has no uncommitted rows but plans."""
        rows = "WHERE state IN ('committed', 'accepted')" if table == tables.BATCHES else f"VERSION AS OF {version}"
        folder = literal(self._folder(table))
        self.spark.sql(
            f"CREATE OR REPLACE VIEW {self.schema}.{quoted(committed_view(name))} "
            f"COMMENT '{table} of {self.workspace.spec.name} as of batch {batch_id}' "
            f"TBLPROPERTIES ('{_BATCH}' = '{batch_id}', '{_FOLDER}' = {folder}) "
            f"AS SELECT * FROM {self.schema}.{quoted(name)} {rows}"
        )

    def _refuse_taken(self, name: str, *, is_view: bool, folder: str) -> None:
        about = self._about(name)
        ours = self._properties(name).get(_FOLDER) if is_view else _plain(about.get("Location", ""))
        if (about.get("Type") == "VIEW") == is_view and ours == folder:
            return
        kind = "view" if about.get("Type") == "VIEW" else "table"
        where = about.get("Location") or self._properties(name).get(_FOLDER) or ""
        raise CatalogError(
            f"{self.schema}.{quoted(name)} is taken: it is a {kind}" + (f" of {_plain(where)}." if where else "."),
            expected=f"no such name, or the {'view' if is_view else 'table'} of {folder}",
            remedy="drop or rename it, or choose another schema for this pipeline: `catalog: {schema: …}`",
        )

    def _about(self, name: str) -> dict[str, str]:
        rows = self.spark.sql(f"DESCRIBE TABLE EXTENDED {self.schema}.{quoted(name)}").collect()
        titles = [place for place, row in enumerate(rows) if row[0].startswith("# Detailed")]
        return {row[0]: row[1] for row in rows[titles[0] if titles else 0 :]}

    def _properties(self, name: str) -> dict[str, str]:
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {self.schema}.{quoted(name)}").collect()
        return {row[0]: row[1] for row in rows}

    def _refuse_names_that_do_not_last(self) -> None:
        catalog = self.schema.split(".", maxsplit=1)[0]
        if catalog != quoted(SESSION_CATALOG):
            return
        if self.spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory":
            raise CatalogError(
                "This Spark has no metastore: names in its catalog would be lost when its process ends.",
                expected="a Spark with a metastore, or a catalog of another name that its settings define",
                remedy="write `spark.sql.catalogImplementation hive` and where the metastore is into "
                "spark-defaults.conf, in the folder that SPARK_CONF_DIR names, or leave `catalog` out of the spec",
            )


def _plain(location: str) -> str:
    """Return a location as a path, without the scheme of the local file system."""
    return location.removeprefix("file:").replace("///", "/", 1) if location.startswith("file:") else location


@contextmanager
def _in_words(schema: str) -> Iterator[None]:
    """Turn a catalog's refusal of a statement into one sentence.

    Raises:
        CatalogError: The catalog refused a statement.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - see above

    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:  # Hive's own exceptions come as they are
        if machine_failure(str(error), type(error).__name__):
            raise
        message, condition = str(error), error.getCondition() if isinstance(error, PySparkException) else None
        first, name = first_line(error), schema.split(".", maxsplit=1)[0]
        if condition in _NOT_THERE:
            fault = f"There is no catalog {name} in this Spark."
            remedy = "correct `catalog.name`, or define the catalog in the spark-defaults.conf of this Spark"
        elif any(sign in message.lower() for sign in _DENIED):
            fault = f"{schema} is not accessible to this user: {first}"
            remedy = "grant CREATE SCHEMA, CREATE TABLE and CREATE VIEW there, or name another schema"
        elif any(sign in message for sign in _UNREACHABLE):
            fault = f"The metastore of {schema} does not answer: {first}"
            remedy = "check that it runs where this Spark's settings say, and that no other process has it open"
        else:
            fault = f"The catalog refuses a name in {schema}: {first}"
            remedy = "look this message up in the documentation of the catalog"
        raise CatalogError(
            fault,
            expected="a catalog that takes external Delta tables, and views of them",
            remedy=f"{remedy}. Tables and commits are unchanged; `tidemark register SPEC` tries again",
        ) from error
