"""Single keys of a spec set from the command line, as `time.unit=second`.

Here: reading such a setting and putting it into what a spec file holds. Not here: whether the spec is right then.
"""

import copy
import re
from collections.abc import Sequence
from typing import Any

from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec.yaml_text import read_yaml

_STEP = re.compile(r"([^.\[\]=]+)|\[(\d+)\]")
_EXPECTED = 'key=value, such as time.out_of_orderness=30s or windows[0].where="v > 1"'


def with_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """What a spec file holds, with some keys set to other values.

    Args:
        data: The mapping of the file.
        overrides: `key=value` each; the key is a path (`sources[0].path`), the value is YAML. Keys that are missing
            are added, entries of lists must be there.

    Raises:
        SpecError: A setting cannot be read, or leads nowhere.
    """
    changed = copy.deepcopy(data)
    for override in overrides:
        path, value = _read(override)
        _put(changed, path, value, override)
    return changed


def _read(override: str) -> tuple[list[str | int], Any]:
    key, sign, text = override.partition("=")
    steps = [name.strip() if name else int(index) for name, index in _STEP.findall(key)]
    document = read_yaml(f"value: {text}") if sign and text.strip() else None
    if document is None or document.problems or not steps or isinstance(steps[0], int):
        raise SpecError(f"--set {override}: this cannot be read", expected=_EXPECTED)
    return steps, document.data["value"]


def _put(data: Any, path: Sequence[str | int], value: Any, override: str) -> None:
    *way, last = path
    for step, following in zip(way, path[1:], strict=True):
        if isinstance(step, str) and isinstance(data, dict):
            data = data.setdefault(step, {} if isinstance(following, str) else [])
        else:
            data = _entry(data, step, override)
    if isinstance(last, str) and isinstance(data, dict):
        data[last] = value
    else:
        _entry(data, last, override)
        data[last] = value


def _entry(data: Any, step: str | int, override: str) -> Any:
    if isinstance(step, int) and isinstance(data, list) and step < len(data):
        return data[step]
    held = (
        f"a list of {len(data)}" if isinstance(data, list) else "no list" if isinstance(step, int) else "no mapping"
    )
    place = f"[{step}]" if isinstance(step, int) else step
    raise SpecError(f"--set {override}: `{place}` leads nowhere, the file has {held} there", expected=_EXPECTED)
