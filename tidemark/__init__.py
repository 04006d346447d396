"""Tidemark: event-time pipelines on PySpark, Delta Lake and Dagster.

Here: the names that users import, as `import tidemark as tm` (docs/library.md), and the allocator that Arrow uses.
Not here: code. Each name is loaded when it is first used, because PySpark and Dagster take seconds to import.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.assets.catalog.asset_specs import asset_key
    from tidemark.assets.questions.advice_answer import Advice
    from tidemark.assets.questions.what_if.simulation_answer import Simulation
    from tidemark.assets.questions.what_if.spec_plan import SpecPlan
    from tidemark.pipelines.case_tests.suite import CasesReport
    from tidemark.pipelines.code_location.rebuilding import Rebuilt
    from tidemark.pipelines.code_location.resource import TidemarkResource
    from tidemark.pipelines.component import TidemarkPipelines
    from tidemark.pipelines.definitions import definitions
    from tidemark.pipelines.library import (
        advise,
        backfill,
        capture,
        explain,
        is_complete,
        plan,
        rebuild,
        rejudge,
        replay,
        run,
        simulate,
        test,
    )
    from tidemark.pipelines.operators.deciding import Rejudged, Replayed
    from tidemark.pipelines.running.execution import BackfillReport
    from tidemark.pipelines.running.runner import RunReport
    from tidemark.pipelines.spec_files import spec
    from tidemark.pipelines.views.status import Status, status
    from tidemark.resources.batches.committed import consistent, read, table
    from tidemark.timeops.errors import BusyError, InputError, LakeError, MachineError, SpecError, TidemarkError
    from tidemark.timeops.library import AdjustedEvents, adjust, window_dead_letters, windows
    from tidemark.timeops.spec import Spec, TimeSpec, WindowSpec

__version__ = "0.2.0"

if sys.platform == "linux":  # Arrow has no jemalloc on every other system
    # Arrow reads this when it is imported first. Its own choice, mimalloc, keeps much of what was freed, even when
    # `release_unused` is called.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")

__all__ = [
    "AdjustedEvents",
    "Advice",
    "BackfillReport",
    "BusyError",
    "CasesReport",
    "InputError",
    "LakeError",
    "MachineError",
    "Rebuilt",
    "Rejudged",
    "Replayed",
    "RunReport",
    "Simulation",
    "Spec",
    "SpecError",
    "SpecPlan",
    "Status",
    "TidemarkError",
    "TidemarkPipelines",
    "TidemarkResource",
    "TimeSpec",
    "WindowSpec",
    "__version__",
    "adjust",
    "advise",
    "asset_key",
    "backfill",
    "capture",
    "consistent",
    "definitions",
    "explain",
    "is_complete",
    "plan",
    "read",
    "rebuild",
    "rejudge",
    "replay",
    "run",
    "simulate",
    "spec",
    "status",
    "table",
    "test",
    "window_dead_letters",
    "windows",
]

_MODULES = {
    "tidemark.assets.catalog.asset_specs": ["asset_key"],
    "tidemark.pipelines.component": ["TidemarkPipelines"],
    "tidemark.pipelines.operators.deciding": ["Rejudged", "Replayed"],
    "tidemark.pipelines.definitions": ["definitions"],
    "tidemark.assets.questions.advice_answer": ["Advice"],
    "tidemark.assets.questions.what_if.simulation_answer": ["Simulation"],
    "tidemark.assets.questions.what_if.spec_plan": ["SpecPlan"],
    "tidemark.pipelines.case_tests.suite": ["CasesReport"],
    "tidemark.pipelines.running.execution": ["BackfillReport"],
    "tidemark.pipelines.library": [
        "advise",
        "backfill",
        "capture",
        "explain",
        "is_complete",
        "plan",
        "rebuild",
        "rejudge",
        "replay",
        "run",
        "simulate",
        "test",
    ],
    "tidemark.pipelines.code_location.rebuilding": ["Rebuilt"],
    "tidemark.pipelines.code_location.resource": ["TidemarkResource"],
    "tidemark.pipelines.running.runner": ["RunReport"],
    "tidemark.pipelines.spec_files": ["spec"],
    "tidemark.pipelines.views.status": ["Status", "status"],
    "tidemark.resources.batches.committed": ["consistent", "read", "table"],
    "tidemark.timeops.errors": [
        "BusyError",
        "InputError",
        "LakeError",
        "MachineError",
        "SpecError",
        "TidemarkError",
    ],
    "tidemark.timeops.library": ["AdjustedEvents", "adjust", "window_dead_letters", "windows"],
    "tidemark.timeops.spec": ["Spec", "TimeSpec", "WindowSpec"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
