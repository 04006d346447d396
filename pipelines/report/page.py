"""The page itself: the facts of a pipeline, filled into the template.

Here: the parts of the page, and the promise that it needs nothing else and runs no script but its own. Not here: the
contents of a part (its siblings), where the page is written (../commands/looking.py).
"""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tidemark.pipelines.report import accounts, charts, words
from tidemark.pipelines.report.accounts import State, state_of
from tidemark.pipelines.terminal import (
    by_hand,
    changed_by_hand,
    instant,
    instant_us,
    length,
    number,
    plural,
    second,
    share,
    sums,
    watermark_text,
)
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import Spec

_TEMPLATES = Path(__file__).parent / "templates"
_LAST_BATCHES = 50
_SHOWN_TIMELINES = 12


def page_of(workspace: Workspace) -> str:
    """Return the page of a pipeline as of its last commit, as HTML. It writes nothing and needs no Spark."""
    state = state_of(workspace)
    about = {"spec": workspace.spec, "written": workspace.clock.now()}
    if state is None:
        return _rendered("not_run.html.j2", about)
    by_reason = state.dead_letters
    workspace.tell("reading counts")
    found = about | {
        "state": state,
        "places": (places := accounts.places(state)),
        "adds_up": accounts.adds_up(places, state.counts),
        "by_hand": by_hand(changed_by_hand(state.lake, state.versions, state.spec, state.counts, state.log_end)),
        "sources": accounts.sources(state),
        "clocks": accounts.clocks(state),
        "by_window": accounts.windows(state),
        "watermark": watermark_text(state.position),
        "in_all": (sum(by_reason.values()), by_reason),
        "batches": accounts.batches(state, _LAST_BATCHES),
        "timelines": _timelines(state),
        "last_batches": _LAST_BATCHES,
    }
    workspace.tell("drawing the log")
    of_log = charts.log_charts(state)
    workspace.tell("reading windows")
    parts = [charts.window_part(state, window) for window in workspace.spec.windows]
    workspace.tell("reading dead letters")
    shown = accounts.newest_dead_letters(state, by_reason)
    return _rendered("page.html.j2", found | {"charts": of_log, "windows": parts, "dead_letters": shown})


def _timelines(state: State) -> tuple[int, list[accounts.Timeline]] | None:
    if not state.spec.time.over or not state.processed:
        return None
    return accounts.timelines(state, _LAST_BATCHES, _SHOWN_TIMELINES)


def _rendered(template: str, found: dict[str, object]) -> str:
    spec = found["spec"]
    assert isinstance(spec, Spec)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,  # names, expressions and payloads are text of users
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "share": share,
        "instant": instant,
        "instant_us": instant_us,
        "second": second,
        "length": length,
        "plural": plural,
        "length_of": len,
        "before_start": lambda commits: sums(commits).get("before_start", 0),
    }
    style, script = (_TEMPLATES / "page.css").read_text(), (_TEMPLATES / "filter.js").read_text()
    return environment.get_template(template).render(
        found
        | {
            "time_lines": words.of_time(spec),
            "source_lines": words.of_sources(spec),
            "window_lines": [(window.name, words.of_window(window)) for window in spec.windows],
            "style": Markup(style),
            "script": Markup(script),
            # The browser runs this one script and loads nothing, whatever a payload says.
            "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{_hash(script)}'",
        }
    )


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
