"""Assets of a project downstream of windows: the partitions to compute again after a decision on records.

Here: which they are, and links by which a person launches exactly these as a backfill. Not here: the days of windows
(assets/rebuild/differences.py), conditions by which Dagster launches them itself
(docs/how-to/see-lineage-and-versions.md).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import dagster as dg

from tidemark.assets.catalog.display.metadata import Metadata
from tidemark.assets.catalog.runs import key
from tidemark.assets.rebuild.differences import WindowDifference
from tidemark.resources.tables import window_table
from tidemark.resources.workspace import SpecFile

_MOST_IN_LINK = 100  # partitions


def to_compute_again(context: dg.OpExecutionContext, file: SpecFile, differs: Sequence[WindowDifference]) -> Metadata:
    """Show the partitions downstream of a run's differences, with links; nothing where there are none.

    Assets of other code locations are not known here, nor is any in a run of a command.
    """
    try:
        repository = context.repository_def
    except Exception:
        return {}
    with dg.partition_loading_context(dynamic_partitions_store=context.instance):
        partitions = partitions_downstream(repository, file, differs)
    return {"to_compute_again": dg.MetadataValue.md(links(partitions))} if partitions else {}


def partitions_downstream(
    repository: dg.RepositoryDefinition, file: SpecFile, differs: Sequence[WindowDifference]
) -> Mapping[dg.AssetKey, Sequence[str]]:
    """Return the partitions of the assets next downstream that days of windows go into, in order."""
    graph, by_asset = repository.asset_graph, defaultdict[dg.AssetKey, set[str]](set)
    days = {key(file, window_table(window.window)): window.days for window in differs}
    for asset, of_window in days.items():
        for day in of_window if graph.has(asset) else ():
            for partition in graph.get_children_partitions(asset, day):
                if partition.partition_key is not None and partition.asset_key not in days:
                    by_asset[partition.asset_key].add(partition.partition_key)
    return {asset: sorted(partitions) for asset, partitions in sorted(by_asset.items())}


def links(partitions: Mapping[dg.AssetKey, Sequence[str]]) -> str:
    """Return a list in Markdown: each asset leads to its page, where Materialize has these partitions chosen."""
    lines = []
    for asset, keys in partitions.items():
        some, n_more = ",".join(keys[:_MOST_IN_LINK]), len(keys) - _MOST_IN_LINK
        path = "/".join(quote(part, safe="") for part in asset.path)
        page = f"/assets/{path}?view=partitions&default_range={quote(some, safe=',')}"
        ending = f" and {n_more} more" if n_more > 0 else ""
        lines.append(f"- [{asset.to_user_string()}]({page}): {some.replace(',', ', ')}{ending}")
    return "\n".join(lines)
