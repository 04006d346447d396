"""The house as a tree: storeys, rooms and files, with the first line of each docstring and the lines of each file.

`tidemark/` holds a link for each storey, so tools that follow no links show nothing of the code, and others show it
twice.
"""

import ast
from pathlib import Path

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from tests import ROOT

_WIDE = 160  # characters, where it is not a terminal that reads it
STOREYS = ("pipelines", "assets", "resources", "timeops")


def house(root: Path = ROOT) -> Tree:
    """Return the storeys from the top to the bottom."""
    tree = Tree(root.name)
    for storey in STOREYS:
        _add(tree, root / storey)
    return tree


def _add(tree: Tree, path: Path) -> None:
    """Add a file, or a room with what is in it, rooms first."""
    is_room = path.is_dir()
    text = (path / "__init__.py" if is_room else path).read_text(encoding="utf-8")
    files = path.rglob("*.py") if is_room else [path]
    lines = sum(file.read_text(encoding="utf-8").count("\n") for file in files)
    about = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    name = f"{path.name}/" if is_room else path.name
    branch = tree.add(Text.assemble((name, "bold"), f"  {lines:,}  ", (about, "dim")))
    if is_room:
        inside = [each for each in path.iterdir() if (each / "__init__.py").is_file() or each.suffix == ".py"]
        for each in sorted(inside, key=lambda each: (each.is_file(), each.name)):
            if each.name != "__init__.py":
                _add(branch, each)


if __name__ == "__main__":
    console = Console()
    Console(width=console.width if console.is_terminal else _WIDE).print(house())
