"""Columns that input has and no `schema` names: which were reported before, and the sentence on the new ones.

Here: what the plan of an ingestion remembers of them. Not here: finding them (resources/sources/columns.py).

They are reported once, by the ingestion that meets them first: most are of no use to the pipeline.
"""

from collections.abc import Iterator, Mapping

from tidemark.assets.ingestion.waiting_input import Waiting
from tidemark.resources.batches.plans import IngestInput, Plan
from tidemark.resources.sources.columns import line_to_add, not_to_add, unknown_of
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import Source, Spec

Met = Mapping[str, Mapping[str, str]]


def met_by(workspace: Workspace, waiting: Waiting) -> tuple[Met, Met]:
    """Return by source the columns that no `schema` names: all that were met so far, and the new ones."""
    known_columns, now = known_unknown(workspace), {}
    fresh = {}
    for source in workspace.spec.sources:
        columns = unknown_of(source, waiting.by_source[source.name].columns)
        earlier = dict(unknown_of(source, known_columns.get(source.name, {}).items()))
        first = {name: kind for name, kind in columns if name not in earlier}
        now[source.name], fresh[source.name] = earlier | first, first
    all_met, met_first = ({name: met for name, met in of.items() if met} for of in (now, fresh))
    return all_met, met_first


def known_unknown(workspace: Workspace) -> Met:
    """Return by source the columns that input was found to have, as the latest ingestion remembers them."""
    last = workspace.batches.last_commit("ingest") if workspace.exists else None
    return workspace.by_source(IngestInput.of(last.plan).unknown_columns) if last else {}


def first_met(spec: Spec, plan: Plan) -> list[str]:
    """Return a sentence for each source with columns that an ingestion met first."""
    return list(_sentences(spec.sources, IngestInput.of(plan).first_met))


def never_taken(workspace: Workspace) -> list[str]:
    """Return a sentence for each source with columns that are not taken, whenever they were met."""
    return list(_sentences(workspace.spec.sources, known_unknown(workspace)))


def _sentences(sources: tuple[Source, ...], met: Met) -> Iterator[str]:
    for source in sources:
        columns = unknown_of(source, met.get(source.name, {}).items())
        if not columns:
            continue
        names = ", ".join(f"`{name}`" for name, _ in columns)
        sentences = [f"source {source.name} has {names}, which `schema` does not name."]
        if line := line_to_add(source, columns):
            later = "; until then `_rescued` keeps the values, and a rebuild then fills the past"
            clause = later if source.keep_unknown else ""
            sentences.append(f"To take {'it' if len(columns) == 1 else 'them'} from here on, {line}{clause}.")
        yield " ".join([*sentences, *not_to_add(source, columns)])
