"""The command that an audit names for a finding is one that the pipeline takes."""

from pathlib import Path

from tests.runs.join.test_windows_over_joins import SPEC
from tests.runs.running import written
from tidemark.assets.audit.findings import of_window, some
from tidemark.resources.workspace import Workspace


def test_wrong_results_of_a_window_are_rebuilt_alone_unless_they_go_over_a_join(tmp_path: Path) -> None:
    file, settings = written(tmp_path, "paying", SPEC)
    workspace = Workspace(file, settings.warehouse)
    commands = {
        window.name: of_window(workspace, window, "wrong").repair(workspace).partition("paying.yaml")[2]
        for window in file.spec.windows
    }
    assert commands.pop("events") == " --window events"
    assert set(commands.values()) == {""}


def test_many_numbers_are_said_as_ranges() -> None:
    assert some([]) == ""
    assert some([1, 2, 3, 7]) == "1 to 3, 7"
    assert some([1, 3, 5, 7, 9_000]) == "1, 3, 5 and 2 more"
