"""What Spark says of a spec before any table is made: its schemas and its expressions, with file, line and key.

Here: the columns that expressions may name, and the one error that lists what is wrong. Not here: judging
(timeops/spec_check.py), the columns of tables (schemas.py).
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.resources.sources.files import payload_schema
from tidemark.resources.sources.lines import quoted
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError
from tidemark.timeops.problems import Problem
from tidemark.timeops.spec_check import Columns, expression_problems

_NOT_OF_THE_LOG = (c.BATCH, c.MALFORMED)  # the first would make results depend on how the log is cut
_OF_EVENTS = {
    c.TIMESTAMP: "timestamp",
    c.EVENT_TIME: "timestamp",
    c.ARRIVAL: "timestamp",
    c.SEQ: "bigint",
    c.TIMELINE: "string",
    c.ADJUSTED_BY: "array<string>",
    c.SOURCE: "string",
    c.SPLIT: "string",
}


def ensure_schemas(workspace: Workspace) -> None:
    """Sees that the schema of each source can be read.

    Raises:
        SpecError: One cannot.
    """
    problems = []
    for number, source in enumerate(workspace.spec.sources):
        try:
            payload_schema(workspace.spark, source)
        except SpecError as error:
            found = error.found.removeprefix(f"`sources[{source.name}].schema`: ")
            problems.append(Problem(found, error.expected, error.remedy, ("sources", number, "schema")))
    if problems:
        raise workspace.file.error(problems)


def ensure_expressions(workspace: Workspace, log: DataFrame, of_events: Sequence[str]) -> None:
    """Sees that every expression of the spec goes with the columns that it may name.

    Args:
        workspace: The pipeline.
        log: No rows, with the columns of `raw_events`.
        of_events: The columns that the expressions of windows may name.

    Raises:
        SpecError: One does not; all that do not are named.
    """
    sources = [log.select(*map(quoted, payload_schema(workspace.spark, one).names)) for one in workspace.spec.sources]
    events = log.select(
        *[
            F.lit(None).cast(_OF_EVENTS[name]).alias(name) if name in _OF_EVENTS else F.col(quoted(name))
            for name in of_events
        ]
    )
    problems = expression_problems(workspace.spec, Columns(sources, log.drop(*_NOT_OF_THE_LOG), events))
    if problems:
        raise workspace.file.error(problems)
