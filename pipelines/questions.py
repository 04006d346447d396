"""The functions with which a program asks the log what would be: `tm.advise`, `tm.simulate`.

Here: their arguments, and what they share with the commands. Not here: the answers (assets/questions/).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

from tidemark.assets.preview import Stretch
from tidemark.assets.questions.advice import Advice, advice_of
from tidemark.assets.questions.simulation import Setting, Simulation, simulation_of
from tidemark.pipelines.command_line import SPECS, pipeline_of
from tidemark.pipelines.library import as_guest
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import from_environment
from tidemark.resources.workspace import silent
from tidemark.timeops.errors import SpecError
from tidemark.timeops.utc import us_of

Named = str | PathLike[str]


def advise(
    spec: Named, *, warehouse: Named | None = None, overrides: Sequence[str] = (), spark: str | None = None
) -> Advice:
    """Return how late the events of a pipeline are, and what every out-of-orderness would lose, as `tidemark advise`.

    The whole log is judged by the spec as it is; nothing is written. `text` of the result is what the command prints.

    Args:
        spec: The path of a spec file.
        warehouse: The folder of all tables, or its URL; by default `TIDEMARK_WAREHOUSE`, else `./warehouse`.
        overrides: Keys of the spec to set to other values, as `--set` does.
        spark: The Spark that computes, as of `run`.

    Raises:
        SpecError: The spec is wrong, or has no event time.
        TidemarkError: Nothing was processed yet.
    """
    file = read_spec(Path(spec), overrides)
    settings = from_environment(SPECS, warehouse=warehouse, spark=spark)
    with as_guest():
        return advice_of(pipeline_of(file, settings, silent))


def simulate(
    spec: Named,
    settings: Sequence[Sequence[str]],
    *,
    first: datetime | str | None = None,
    end: datetime | str | None = None,
    warehouse: Named | None = None,
    spark: str | None = None,
) -> Simulation:
    """Return what other settings would make of the log of a pipeline, as `tidemark simulate` shows it.

    The log is judged from its beginning with each setting; nothing is written. `text` of the result is what the
    command prints.

    Args:
        spec: The path of a spec file.
        settings: Each a list of keys and values, such as `["time.out_of_orderness=10s"]`.
        first: Windows that start, and events, from here on are compared; by default all. Without an offset in UTC.
        end: Windows that start, and events, before this are compared; by default all.
        warehouse: As of `advise`.
        spark: As of `run`.

    Raises:
        SpecError: The spec or a setting is wrong, or the log cannot answer for it.
        TidemarkError: Nothing was processed yet.
    """
    if isinstance(settings, str) or any(isinstance(one, str) for one in settings):
        raise SpecError(
            f"`settings` is {settings!r}",
            expected="a list of settings, each a list of texts",
            remedy='[["time.out_of_orderness=10s"]]',
        )
    if not settings or not all(settings):
        raise SpecError("`settings` is empty, or one of them is", expected="at least one key and value in each")
    file, each, stretch = read_spec(Path(spec)), settings_with(Path(spec), settings), stretch_of(first, end)
    known = from_environment(SPECS, warehouse=warehouse, spark=spark)
    with as_guest():
        return simulation_of(pipeline_of(file, known, silent), each, stretch)


def settings_with(spec: Path, settings: Sequence[Sequence[str]]) -> list[Setting]:
    """Return settings with the specs that they make.

    Raises:
        SpecError: One cannot be read, or makes a wrong spec.
    """
    return [Setting(tuple(one), read_spec(spec, one)) for one in settings]


def stretch_of(first: datetime | str | None, end: datetime | str | None) -> Stretch:
    """Return the stretch of event time between two instants.

    Raises:
        SpecError: One is not an instant, or the end is not after the start.
    """
    bounds = Stretch(_instant(first, "from"), _instant(end, "to"))
    if bounds.first_us is not None and bounds.end_us is not None and bounds.end_us <= bounds.first_us:
        raise SpecError(f"--from {first} --to {end}: this holds no time", expected="an end after the start")
    return bounds


def _instant(value: datetime | str | None, name: str) -> int | None:
    if value is None:
        return None
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise SpecError(
            f"--{name} {value}: this is not an instant",
            expected="ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z",
        ) from None
    return us_of(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
