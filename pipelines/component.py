"""`tidemark.TidemarkPipelines`: pipelines as a component of a Dagster project.

Here: its attributes in `defs.yaml`, how it translates assets, and what `dg scaffold defs` writes. Not here: the
definitions that it makes (pipelines/definitions.py), the assets as they are without a translation
(assets/catalog/asset_specs.py).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field

from tidemark.assets.catalog.asset_specs import asset_key, asset_specs
from tidemark.pipelines.definitions import definitions
from tidemark.pipelines.examples.files import ROOMS, lay_out_example
from tidemark.pipelines.spec_files import read_specs
from tidemark.resources.places.place import is_url, place_of
from tidemark.resources.settings import from_environment
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import did_you_mean

_DEFS = """\
type: {type}

attributes:
  specs: {specs}
  warehouse: "{{{{ env('TIDEMARK_WAREHOUSE', context.project_root ~ '/warehouse') }}}}"   # or a URL
  # translation:                  # what the catalog shows of a table: also owners, tags, kinds, metadata, ...
  #   key_prefix: lake
  #   group_name: "{{{{ pipeline }}}}"   # as it is by default; `table` is such as windows/by_hour
"""
_EXAMPLE_SPECS = "specs   # a folder of specs, a spec file, or a list of these; relative to this file"
_COMPONENT = """\
from pathlib import Path

import dagster as dg
from {module} import {name}


@dg.component_instance
def pipelines(context: dg.ComponentLoadContext) -> {name}:
    return {name}(specs=[{specs}], warehouse=context.project_root / "warehouse")
"""


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs tidemark.TidemarkPipelines`."""

    specs: str | None = Field(None, description="An existing folder of specs; without it an example is written.")


class PipelinesScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes the component, and an example next to it that can be run at once."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """Return the model of the options."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write the files.

        Raises:
            SpecError: The folder of specs is not there.
        """
        specs_path = request.params.specs
        folder = request.target_path.parent if request.append else request.target_path
        if specs_path is None:
            lay_out_example(folder, ROOMS)
        elif not Path(specs_path).exists():
            raise SpecError(
                f"{Path(specs_path).absolute()}: there is no such folder",
                expected="a folder of specs, or a spec file",
                remedy="correct --specs, or leave it out: then an example is written",
            )
        place = os.path.relpath(specs_path, request.project_root) if specs_path else ""
        if request.append:
            scaffold_component(request, {"specs": _in_project(place) if specs_path else "specs"})
        elif request.scaffold_format == "yaml":
            specs = f'"{_in_project(place)}"' if specs_path else _EXAMPLE_SPECS
            (folder / "defs.yaml").write_text(_DEFS.format(type=request.type_name, specs=specs), encoding="utf-8")
        else:
            module, _, name = request.type_name.rpartition(".")
            specs = f'context.project_root / "{place}"' if specs_path else 'Path(__file__).parent / "specs"'
            text = _COMPONENT.format(module=module, name=name, specs=specs)
            (folder / "component.py").write_text(text, encoding="utf-8")


def _in_project(place: str) -> str:
    return f"{{{{ context.project_root }}}}/{place}"


def _places(context: dg.ResolutionContext, specs: str | list[str]) -> list[Path]:
    places = context.resolve_value([specs] if isinstance(specs, str) else specs)
    if not places or not all(place and isinstance(place, str) for place in places):
        raise SpecError(
            f"`specs` is {places!r}",
            expected="a folder of specs, a spec file, or a list of these",
            remedy="set the variable that it names, or write a path, relative to the folder of this file",
        )
    return [context.resolve_source_relative_path(place) for place in places]


def _warehouse(context: dg.ResolutionContext, warehouse: str | None) -> str | None:
    return warehouse if not warehouse or is_url(warehouse) else str(context.resolve_source_relative_path(warehouse))


_TRANSLATION = TranslationFnResolver[Mapping[str, str]](lambda names: names)
_TRANSLATION.description = (  # as Dagster shows it, without Markdown; its initializer takes none
    "What the catalog shows of each table, also its key; templates know pipeline, table and spec."
)
_TRANSLATION.examples = [{"key_prefix": "lake", "group_name": "{{ pipeline }}"}]


@dg.scaffold_with(PipelinesScaffolder)
@dataclass
class TidemarkPipelines(dg.Component, dg.Resolvable):
    """Event-time pipelines of a folder of specs: assets, checks, jobs, and the schedules and sensors they ask for.

    Each pipeline brings its tables as assets, a job `<pipeline>_live` that processes what has come in, and jobs for
    upkeep and rebuilds. A spec that is wrong is an asset whose check fails with the message. Specs are read whenever
    the code location is loaded.

    `translation` changes what the catalog shows of each table, also its key. Besides `spec`, the `AssetSpec` as it
    would be, its templates know `pipeline` and `table`, such as `windows/by_hour`. In Python a subclass may override
    `get_asset_spec`.
    """

    specs: Annotated[
        Sequence[str | os.PathLike[str]],
        dg.Resolver(
            _places,
            model_field_type=str | list[str],
            description="A folder whose *.yaml are specs, a spec file, or a list of these; relative to this file.",
            examples=["specs", "{{ context.project_root }}/specs"],
            inject_before_resolve=False,  # Dagster would take a variable that is not set for the whole attribute
        ),
    ]
    warehouse: Annotated[
        str | os.PathLike[str] | None,
        dg.Resolver(
            _warehouse,
            model_field_type=str | None,
            description="The folder of all tables, relative to this file, or its URL in a store. By default "
            "TIDEMARK_WAREHOUSE, else ./warehouse.",
            examples=["{{ context.project_root }}/warehouse", "{{ env.TIDEMARK_WAREHOUSE }}"],
        ),
    ] = None
    spark: Annotated[
        str | None,
        dg.Resolver.default(
            description="The Spark that computes: the URL of a Spark Connect server, or what Spark calls a master. "
            "By default TIDEMARK_SPARK, else the process of the run.",
            examples=["local[4]", "sc://spark.example.com:15002"],
        ),
    ] = None
    translation: Annotated[
        TranslationFn[Mapping[str, str]] | None,
        _TRANSLATION,
    ] = None

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return what lists of components show."""
        kinds = ["asset", "asset_check", "job", "resource", "schedule", "sensor"]
        return dg.ComponentTypeSpec(tags=["pyspark", "delta", "event-time"], produces=kinds)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002 - Dagster's signature
        """Return the definitions of all pipelines."""
        return definitions(
            self.specs,
            self.warehouse or None,
            spark=self.spark,
            translate=self._translated,
        )

    def get_asset_spec(self, spec: dg.AssetSpec, pipeline: str, table: str) -> dg.AssetSpec:
        """Return what the catalog shows of a table; by default as `translation` says.

        Args:
            spec: What it would show without a translation.
            pipeline: The name of the pipeline.
            table: The name of the table, such as `windows/by_hour`; of a wrong spec that of its file.
        """
        if self.translation is None:
            return spec
        return self.translation(spec, {"pipeline": pipeline, "table": table})

    def asset_key(self, pipeline: str, table: str) -> dg.AssetKey:
        """Return the key of a table, for assets downstream of it.

        Raises:
            SpecError: No spec of the component is of this pipeline, or it has no such table.
        """
        plain = asset_key(pipeline, table)
        folder = read_specs(Path(place) for place in self.specs)
        warehouse = place_of(self.warehouse) if self.warehouse else from_environment(Path(self.specs[0])).warehouse
        specs = {file.spec.name: assets for file, assets in asset_specs(folder.files, warehouse).pipelines}
        if pipeline in {spec.pipeline for spec in folder.wrong}:  # what is downstream of a wrong spec stays as it is
            return self._translated(dg.AssetSpec(plain, group_name=pipeline)).key
        for noun, name, choices in (("pipeline", pipeline, specs), ("table", table, specs.get(pipeline, {}))):
            if name not in choices:
                raise SpecError(
                    f"The component has no {noun} `{name}`",
                    expected=f"one of {', '.join(choices)}" if choices else "a spec of it",
                    remedy=did_you_mean(name, [*choices]),
                )
        return self._translated(specs[pipeline][table]).key

    def _translated(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        pipeline, *table = spec.key.path
        return self.get_asset_spec(spec, pipeline, "/".join(table))
