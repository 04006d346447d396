"""The `owners` and `tags` of a spec: by whom and by which words its assets are found in Dagster.

Here: what may stand there. They change no result. Not here: showing them (assets/live.py).
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import WithJsonSchema

from tidemark.timeops.spec.fields import Frozen, name_like

_OWNER = r"team:\S(?:.*\S)?|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}"
_PART = r"[A-Za-z0-9_.-]{1,63}"
_TAG = rf"(?!dagster/)(?:{_PART}/)?{_PART}"  # Dagster's own name space holds the kinds of assets

Owner = Annotated[
    str,
    name_like(_OWNER, "an e-mail address, or `team:` and a name"),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{_OWNER})$"}),
]
_Key = Annotated[str, name_like(_TAG, "letters, digits, `_`, `.` and `-`, with one `/` at most; not of `dagster/`")]
_Value = Annotated[
    str,
    name_like(_PART, "letters, digits, `_`, `.` and `-`, 63 at most"),
    WithJsonSchema({"type": "string", "pattern": f"^{_PART}$"}),
]
Tags = Annotated[
    Mapping[_Key, _Value],
    Frozen,
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{_TAG}$"},
            "additionalProperties": {"type": "string", "pattern": f"^{_PART}$"},
        }
    ),
]
