"""Plain words: no page, docstring, comment or text of the code uses words that a good manual would not."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import ROOT
from tests.pure.project.test_project_files import code_in, read
from tests.wheels import STOREYS

BESIDE = ("benchmarks", "examples", "tests", "tools")
"""Folders whose texts are data: only their docstrings and comments count."""
YAML = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("pipelines/**/*.yaml")])
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])

WORDS = re.compile(
    r"\b(behind|stands?|gives?|tells?|those\s+(?:that|who)|of\s+which|whoever|somebody|nobody)\b", re.IGNORECASE
)
LAGS = r"\b[Bb]ehind\s+(?:(?:its|the|their)\s+watermark|`?W|the\s+clock|the\s+(?:newest|latest)\s+\w+)\b"
NAMED = re.compile(rf"``.+?``|`[^`]*`|\b[A-Z]{{2,}}\b|^\s*\w+:|{LAGS}", re.MULTILINE)
"""What does not count: names (in backticks, of constants, of arguments), and the field's word for a lag: an event is
behind the watermark, and the watermark behind the clock or the newest event."""
NOUNS = re.compile(r"(?:What|Whether|Those|As of)\b")
"""How no first line of a docstring begins."""
NOUNS_OF_FUNCTIONS = re.compile(r"(?:The|An?|How|Who|Why|Which)\b")
"""How the first line of a function's docstring does not begin either: it is an imperative. A property is a noun."""


BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


class Found(NamedTuple):
    """A word to replace."""

    file: str
    line: int
    word: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word}"


def words_in(text: str) -> Iterator[tuple[int, str]]:
    """Find the words of a text to replace, each with the number of its line in the text."""
    prose = NAMED.sub(lambda match: re.sub(r"\S", "_", match[0]), text)
    for match in WORDS.finditer(prose):
        yield prose.count("\n", 0, match.start()), " ".join(match[0].split()).lower()


def is_imperative(owner: ast.AST) -> bool:
    """Return whether a docstring at this place is an imperative: that of a function that is not a property."""
    if not isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any(ast.unparse(one).endswith("property") for one in owner.decorator_list)


def first_word(text: str, *, of_function: bool) -> str | None:
    """Return how a docstring begins if it should begin in another way."""
    found = NOUNS.match(text) or (NOUNS_OF_FUNCTIONS.match(text) if of_function else None)
    return found[0] if found else None


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Find the docstrings of a module, of attributes too: line, text, and whether it should be an imperative."""
    for owner in ast.walk(tree):
        body = getattr(owner, "body", None)
        for place, one in enumerate(body if isinstance(body, list) else []):
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, one.value.value, place == 0 and is_imperative(owner)


def found_in(source: str, file: str = "file.py", *, texts: bool = True) -> list[Found]:
    """Find what is to be said in other words in a Python file.

    Args:
        source: Its content.
        file: Its name.
        texts: Whether literals count as well; one without a blank is a name.
    """
    found: list[Found] = []
    tree = ast.parse(source)
    told = list(docstrings(tree))
    said = [(line, text) for line, text, _ in told]
    if texts:
        literals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        said = [(node.lineno, str(node.value)) for node in literals if re.search(r"\s", str(node.value))]
    for begin, text in said:
        found += [Found(file, begin + line, word) for line, word in words_in(text)]
    for line, text, of_function in told:
        word = first_word(text, of_function=of_function)
        found += [Found(file, line, f"«{word}» begins a docstring")] if word else []
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type == tokenize.COMMENT:
            found += [Found(file, token.start[0], word) for _, word in words_in(token.string)]
    return sorted(found)


def found_beside(text: str, file: str) -> list[Found]:
    """Find what is to be said in other words in comments of YAML, and in the names of cases."""
    said = re.compile(r"(?:^|\s)#\s(.*)$|^\s*- name: (.*)$")
    lines = [(line, found) for line, text in enumerate(text.splitlines(), 1) if (found := said.search(text))]
    return [Found(file, line, word) for line, found in lines for _, word in words_in(found[1] or found[2])]


def found_on(page: str, file: str = "page.md") -> list[Found]:
    """Find what is to be said in other words on a page, outside of its blocks of code."""
    prose = BLOCK.sub(lambda match: re.sub(r"\S", "_", match[0]), page)
    return [Found(file, 1 + line, word) for line, word in words_in(prose)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("folder", [*STOREYS, *BESIDE])
def test_the_code_uses_none_of_these_words(folder: str) -> None:
    paths = [path for path in code_in(folder) if path != Path(__file__)]
    assert paths
    found = [one for path in paths for one in found_in(read(path), name_of(path), texts=folder in STOREYS)]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_uses_none_of_these_words(page: Path) -> None:
    found = found_on(read(page), name_of(page))
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("file", YAML, ids=name_of)
def test_comments_of_yaml_and_names_of_cases_use_none_of_these_words(file: Path) -> None:
    found = found_beside(read(file), name_of(file))
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('x = "the rows behind it"', ["behind"]),
        ('x = f"{y} gives {z}"', ["gives"]),
        ("x = 1  # nobody knows", ["nobody"]),
        ('x = "those\\n  that wait"', ["those that"]),
        ('x = "it is 2 s behind the watermark, in `behind it`"', []),
        ('x = {"behind": 1}', []),
        ('class C:\n    """Attributes.\n\n    behind: BEHIND, by item.\n    """', []),
        ("behind = stands(gives)", []),
        ('def f():\n    """What it is."""', ["«What» begins a docstring"]),
        ('def f():\n    """The sum."""', ["«The» begins a docstring"]),
        ('@property\ndef f():\n    """The sum."""', []),
        ('@cached_property\ndef f():\n    """Whether it is."""', ["«Whether» begins a docstring"]),
        ('class C:\n    """The sum."""', []),
        ('x = 1\n"""Those."""', ["«Those» begins a docstring"]),
        ('def f():\n    """Return the sum."""', []),
    ],
)
def test_words_are_found_in_texts_and_not_in_names(source: str, words: list[str]) -> None:
    assert [one.word for one in found_in(source)] == words


def test_a_word_is_found_at_its_line_and_a_text_of_a_test_is_data() -> None:
    assert [str(one) for one in found_in('"""One line.\n\nIt stands here."""\n', "a.py")] == ["a.py:3: stands"]
    source = '"""It stands."""\nx = "it stands here"  # it stands\n'
    assert [one.line for one in found_in(source, texts=False)] == [1, 2]


def test_a_page_is_read_outside_of_its_blocks_of_code() -> None:
    page = "It is behind the watermark.\n\n```sh\nls behind\n```\n\nRows behind it.\n"
    assert found_on(page) == [Found("page.md", 7, "behind")]
