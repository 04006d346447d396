"""Questions to a pipeline in Dagster: why, how long to wait, what if, and whether all that is stored is right.

Here: the jobs whose runs have the answers, and what they share with the commands and `tm.simulate`: settings and
times as a person writes them. Not here: the answers (assets/questions/, assets/audit/), `tm.explain`, `tm.advise` and
`tm.simulate` (pipelines/library.py), the commands (pipelines/commands/).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from tidemark.assets.catalog.display import metadata as show
from tidemark.assets.catalog.runs import job_of, told_to_dagster
from tidemark.assets.questions.advice import advice_of
from tidemark.assets.questions.advice_answer import Advice
from tidemark.assets.questions.asking import MOST_EXPLAINED, Answer, Question, RecordAnswers, explain
from tidemark.assets.questions.what_if.preview import ComparedStretch
from tidemark.assets.questions.what_if.simulation import Setting, simulation_of
from tidemark.assets.questions.what_if.simulation_answer import Simulation
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import SparkChoice, open_session
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.printable import json_line, printable
from tidemark.timeops.values.utc import us_of

_MOST_SHOWN = 20  # findings of an audit; its metadata has all


def _optional(kind: Any, about: str) -> dg.Field:
    return dg.Field(kind, is_required=False, description=about)


_EXPLAIN = {
    "seq": _optional(int, "A record, by its `_arrival_seq`."),
    "where": _optional(str, "Records of the log that meet a condition, such as `device = 'a'`."),
    "limit": dg.Field(int, default_value=MOST_EXPLAINED, description="Maximum number of records of `where`."),
    "window": _optional(str, "A window of the spec; with `start`."),
    "start": _optional(str, "Where the window begins, such as `2026-01-31T12:00:00Z`; UTC by default."),
    "group": _optional(dict, "Columns and values of one group of the window; by default all groups."),
}
_SIMULATE = {
    "set": dg.Field([str], description="Keys of the spec with values, such as `time.out_of_orderness=10s`."),
    "or": dg.Field([[str]], default_value=[], description="Other settings, next to the first: each a list as `set`."),
    "from": _optional(str, "Compare windows that start, and events, from here on; ISO 8601, UTC by default."),
    "to": _optional(str, "Compare windows that start, and events, before this."),
}
_QUESTIONS: Any = dg.Selector(  # type: ignore[no-untyped-call]
    {
        "explain": dg.Field(_EXPLAIN, description="Why is a record or a window as it is? As `tidemark explain`."),
        "advise": dg.Field({}, description="How late do events come, and how long to wait? As `tidemark advise`."),
        "simulate": dg.Field(
            _SIMULATE, description="What would other settings make of the log? As `tidemark simulate`."
        ),
    }
)


def question_job(file: SpecFile, settings: Settings, choice: SparkChoice) -> dg.JobDefinition:
    """Build the job that answers one question to a pipeline. It writes nothing, so it is in no pool.

    Args:
        file: The spec.
        settings: Where the tables are.
        choice: The Spark that computes what Arrow cannot.
    """
    name = file.spec.name

    @dg.op(
        name=f"{name}__ask",
        description="Answers one question: why, how long to wait, or what if.",
        config_schema=_QUESTIONS,
        out=dg.Out(dg.Nothing),
    )
    @told_to_dagster
    def ask(context: dg.OpExecutionContext) -> Iterator[dg.Output[None]]:
        tell = context.log.info
        workspace = Workspace(file, settings.warehouse, partial(open_session, choice, tell), tell=tell)
        [(kind, config)] = context.op_config.items()
        answer = _answer(workspace, kind, config)
        context.log.info(printable(answer.text, keep="\n"))
        yield dg.Output(None, metadata=_metadata_of(answer))

    about = (
        f"Answers a question to {name}: why a record or a window is as it is, how long to wait for late events, what "
        "other settings would make of the log. The answer is in the metadata of the run's output. Nothing is written."
    )
    return job_of(ask, f"{name}_ask", about, config=show.ask_with(file.spec, {"advise": {}}))


def audit_job(file: SpecFile, settings: Settings, choice: SparkChoice) -> dg.JobDefinition:
    """Build the job that audits a pipeline. It is in no pool, as it only reads, and runs continue meanwhile."""
    name = file.spec.name

    @dg.op(name=f"{name}__audit", description="Audits all that the pipeline has stored; fails if something is wrong.")
    def look(context: dg.OpExecutionContext) -> None:
        from tidemark.assets.audit.whole import audit  # noqa: PLC0415 - commands that only ask need none of it

        session = partial(open_session, choice, context.log.info)
        workspace = Workspace(file, settings.warehouse, session, tell=context.log.info)
        audited = audit(workspace)
        for note in audited.notes:
            context.log.warning(note)
        findings = audited.to_list(workspace)
        context.add_output_metadata(
            {"batch": audited.batch or 0, "records": audited.records, "findings": len(findings)}
        )
        if findings:
            lines = [
                f"{finding['table']}: {finding['what']}. {finding['repair']}" for finding in findings[:_MOST_SHOWN]
            ]
            raise dg.Failure(
                f"{len(findings)} findings: " + "; ".join(lines), {"findings": findings}, allow_retries=False
            )

    about = f"Audits {name}: files, counts, verdicts and results of the whole history. It only reads, alongside runs."
    return job_of(look, f"{name}_audit", about)


def _answer(workspace: Workspace, kind: str, config: Mapping[str, Any]) -> Answer | Advice | Simulation:
    if kind == "explain":
        return explain(workspace, _question(**config))
    if kind == "advise":
        return advice_of(workspace)
    alternatives = settings_with(workspace.file.path, [config["set"], *config["or"]])
    return simulation_of(workspace, alternatives, stretch_of(config.get("from"), config.get("to")))


def _question(*, limit: int, group: Mapping[str, Any] | None = None, **config: Any) -> Question:
    """Return a question whose values of a group are texts, as YAML has numbers and truth values too."""
    texts = {
        name: value if value is None or isinstance(value, str) else json.dumps(value)
        for name, value in (group or {}).items()
    }
    return Question(**config, group=texts, most=limit)


def _metadata_of(answer: Answer | Advice | Simulation) -> show.Metadata:
    """Return an answer as metadata: as a text, as JSON, and as a picture where it has one."""
    # A browser does not read `NaN`, which JSON does not have.
    plain = json.loads(json_line(answer.to_dict()), parse_constant=str)
    about = {"answer": show.text_block(answer.text), "json": dg.MetadataValue.json(plain)}
    if isinstance(answer, Advice):
        about |= show.pictures({"lost_by_tolerance": answer.picture()})
    if isinstance(answer, RecordAnswers):
        about |= show.numbers({"records": len(answer.records), "records_in_all": answer.in_all})
    return about


def settings_with(spec: Path, settings: Sequence[Sequence[str]]) -> list[Setting]:
    """Return settings with the specs that they make.

    Raises:
        SpecError: There is none, or one of them is empty, cannot be read, or makes a wrong spec.
    """
    if not settings or not all(settings):
        raise SpecError("A setting without a key", expected="keys with values, such as time.out_of_orderness=10s")
    return [Setting(tuple(overrides), read_spec(spec, overrides)) for overrides in settings]


def stretch_of(first: datetime | str | None, end: datetime | str | None) -> ComparedStretch:
    """Return the stretch of event time between two instants.

    Raises:
        SpecError: One is not an instant, or the end is not after the start.
    """
    bounds = ComparedStretch(_instant(first, "from"), _instant(end, "to"))
    if bounds.first_us is not None and bounds.end_us is not None and bounds.end_us <= bounds.first_us:
        raise SpecError(f"Found `from` {first} and `to` {end}.", expected="an end after the start")
    return bounds


def _instant(value: datetime | str | None, name: str) -> int | None:
    if value is None:
        return None
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise SpecError(
            f"`{name}` is {value!r}, which is not an instant.",
            expected="ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z",
        ) from None
    return us_of(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
