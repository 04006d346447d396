"""The product has all names that tests replace in it, and that programs in texts import from it.

No type checker looks at them, and long tests would be the last to fail, as a run takes few of them.
"""

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import ROOT

TESTS = sorted((ROOT / "tests").rglob("*.py"))
IMPORT = re.compile(r"from (tidemark[\w.]*) import ([\w, ]+)")


class Patch(NamedTuple):
    """A line that replaces an attribute of something that is imported from the product."""

    line: int
    module: str
    owner: str
    name: str

    @property
    def is_of_something(self) -> bool:
        module = importlib.import_module(self.module)
        return hasattr(getattr(module, self.owner) if self.owner else module, self.name)


def patches(tree: ast.Module) -> Iterator[Patch]:
    """Return the calls of `setattr` whose names are written out, also in the head of a loop around them."""
    imported = {alias: place for node in ast.walk(tree) for alias, place in product_imports(node)}
    looped: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.For(target=ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), *_])):
                looped.setdefault(name, []).extend(texts_in(node.iter))
            case _:
                pass
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(place)), _]):
                module, _, name = place.rpartition(".")
                yield Patch(node.lineno, module, "", name)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Name(id=owner), named, _]) if (
                owner in imported
            ):
                names = looped.get(named.id, []) if isinstance(named, ast.Name) else texts_in(named)
                yield from (Patch(node.lineno, *imported[owner], name) for name in names)
            case _:
                pass


def product_imports(node: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
    """Return what a node imports from the product: the name here, its module, and what it is in it; "" the module."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidemark"):
        for one in node.names:
            module = f"{node.module}.{one.name}"
            yield one.asname or one.name, (module, "") if is_module(module) else (str(node.module), one.name)


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def texts_in(node: ast.AST) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def test_tests_replace_only_what_the_product_has() -> None:
    in_files: Mapping[Path, list[Patch]] = {
        path: [*patches(ast.parse(path.read_text(encoding="utf-8")))] for path in TESTS
    }
    assert sum(map(len, in_files.values())) > 80
    missing: list[Any] = [
        f"{path.relative_to(ROOT)}:{patch.line}: {patch.module} has no {patch.owner} {patch.name}"
        for path, found in in_files.items()
        for patch in found
        if not patch.is_of_something
    ]
    assert not missing


def test_programs_in_texts_import_only_what_the_product_has() -> None:
    imported = {
        (str(path.relative_to(ROOT)), module, name.split(" as ")[0].strip())
        for path in (*TESTS, *(ROOT / "benchmarks").rglob("*.py"))
        for module, names in IMPORT.findall(path.read_text(encoding="utf-8"))
        for name in names.strip(", ").split(",")
    }
    assert len(imported) > 1000
    assert not [
        place
        for place in imported
        if not hasattr(importlib.import_module(place[1]), place[2]) and not is_module(f"{place[1]}.{place[2]}")
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from tidemark.resources.spark import amount\np.setattr(amount, 'FEW_BYTES', 0)", ["FEW_BYTES"]),
        (
            "from tidemark.resources.spark import amount as a\nfor b in ('FEW_ROWS', 'X'):\n    p.setattr(a, b, 0)",
            ["FEW_ROWS", "X"],
        ),
        (
            "from tidemark.resources.spark import amount\nfor b, n in {'X': 1}.items():\n    p.setattr(amount, b, n)",
            ["X"],
        ),
        ("p.setattr('tidemark.resources.spark.amount.FEW_BYTES', 0)", ["FEW_BYTES"]),
        ("from tidemark.resources.spark.amount import Amount\np.setattr(Amount, 'former', 0)", ["former"]),
    ],
)
def test_a_former_name_is_found(text: str, names: list[str]) -> None:
    found = [*patches(ast.parse(text))]
    assert [patch.name for patch in found] == names
    assert [patch.name for patch in found if patch.is_of_something] == [name for name in names if name == "FEW_ROWS"]
