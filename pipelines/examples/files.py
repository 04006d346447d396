"""The examples that come with Tidemark, as files: specs and their input.

Here: which files an example has, and where they go. Not here: the home that `tidemark init` makes around them
(pipelines/commands/operating.py), the component that `dg scaffold` makes around one (pipelines/component.py).
"""

from pathlib import Path

ROOMS, QUAKES = "rooms", "quakes"
_TEMPLATES = Path(__file__).parent / "templates"
_EXAMPLES = {
    ROOMS: {
        "example.yaml": "specs/example.yaml",
        "example.jsonl": "landing/example/first.jsonl",
        "example.later.jsonl": "later/second.jsonl",
    },
    QUAKES: {
        "quakes.yaml": "quakes.yaml",
        "quakes.2026-01-03.csv": "data/quakes/2026-01-03.csv",
        "quakes.2026-01-04.csv": "data/quakes/2026-01-04.csv",
    },
}
"""Where the files of the examples go."""


def lay_out_example(folder: Path, example: str) -> list[Path]:
    """Write the files of an example into a folder; existing files stay. Return the files that were written.

    Raises:
        OSError: One cannot be written.
    """
    made = []
    for template, place in _EXAMPLES[example].items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text((_TEMPLATES / template).read_text(encoding="utf-8"), encoding="utf-8")
            made.append(file)
    return made
