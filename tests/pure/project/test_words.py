"""Plain words: no page, docstring, comment or text of the code uses words that a good manual would not.

No page has the syntax of a translation either. The code still has some of that, and some names that do not say what a
value is, both within budgets that only shrink.
"""

import ast
import re
import tokenize
from collections.abc import Collection, Iterator
from functools import cache
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
TURNS = {
    "is no X": "(?:is|are|was|were) no",
    "anew": "anew",
    "go on": "(?:go|goes|going|gone|went) on",
    "that is there": "(?:that|what|which) (?:is|are|was|were) there",
    "told.": r"(?:asked|dated|given|kept|said|told)(?=[.:;!?](?:\s|$))",
    "of … of … of": r"of (?:[\w'-]+ ){1,4}of (?:[\w'-]+ ){1,4}of",
    "is to be": "(?:is|are|was|were) to be",
    "beside": "beside",
    "those": "those",
    "is done when it was": r"(?:is|are) \w+(?:ed|en|wn|de|ne|pt|t)(?: only)? when (?:\w+ ){1,5}(?:was|were|had)",
    "told of": "(?:tell|tells|telling|told) of",
    "take in": "(?:take|takes|taken|taking|took) in",
}
"""Syntax that no native speaker would use, by name. A colleague says: is not a; again; continue; existing; a verb and
what it needs; two sentences; has to be, or should be; next to; the ones; the same tense twice; report; apply."""
IDIOMS = re.compile(r"\bthere\s+(?:is|are|was|were)\s+no\b|\bno\s+(?:longer|more|\w+er\s+than)\b", re.IGNORECASE)
"""What looks like such a turn and is English."""
WITHOUT_NOUN = {"found", "one", "known", "own", "said", "given", "told", "kept", "asked"}
"""Names that do not say what a value is: a reader has to look up `found`, and not `refused_seqs`."""
VAGUE = {"after", "before", "came", "done", "each", "gone", "more", "others", "reached", "rest"}
VAGUE |= {"seen", "there", "wanted", "whole"}
"""Names that say when or how much, and not of what; some are good in a few lines."""
NAMES = {"assets": 0, "pipelines": 1, "resources": 1, "timeops": 6}
"""How many variables, arguments, fields and functions of each storey still have a name without a noun."""
NAMES_VAGUE = {"assets": 67, "pipelines": 10, "resources": 109, "timeops": 97}
"""The same of VAGUE."""
NOUNS = re.compile(r"(?:What|Whether|Those|As of)\b")
"""How no first line of a docstring begins."""
NOUNS_OF_FUNCTIONS = re.compile(r"(?:The|An?|How|Who|Why|Which)\b")
"""How the first line of a function's docstring does not begin either: it is an imperative. A property is a noun."""


BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


class Found(NamedTuple):
    """A word, or a turn, to replace."""

    file: str
    line: int
    word: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word}"


TURN = {name: re.compile("\\b" + turn.replace(" ", "\\s+") + "\\b", re.IGNORECASE) for name, turn in TURNS.items()}


def without(what: re.Pattern[str], text: str) -> str:
    """Return a text of as many lines, in which this is struck out."""
    return what.sub(lambda match: re.sub(r"\S", "_", match[0]), text)


def words_in(text: str) -> Iterator[tuple[int, str]]:
    """Find the words of a text to replace, each with the number of its line in the text."""
    prose = without(NAMED, text)
    for match in WORDS.finditer(prose):
        yield prose.count("\n", 0, match.start()), " ".join(match[0].split()).lower()


def turns_in(text: str) -> Iterator[tuple[int, str]]:
    """Find the turns of a text to replace, by name, each with the number of its line in the text."""
    prose = without(IDIOMS, without(NAMED, text))
    for name, turn in TURN.items():
        for match in turn.finditer(prose):
            yield prose.count("\n", 0, match.start()), name


def is_imperative(owner: ast.AST) -> bool:
    """Return whether a docstring at this place is an imperative: that of a function that is not a property."""
    if not isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any(ast.unparse(one).endswith("property") for one in owner.decorator_list)


def first_word(text: str, *, of_function: bool) -> str | None:
    """Return how a docstring begins if it should begin in another way."""
    found = NOUNS.match(text) or (NOUNS_OF_FUNCTIONS.match(text) if of_function else None)
    return found[0] if found else None


def owners(tree: ast.Module) -> Iterator[ast.AST]:
    """Find what can have a docstring in a file: it and its statements, without what these are made of."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        owner = waiting.pop()
        yield owner
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            inside = getattr(owner, part, None)
            waiting += inside if isinstance(inside, list) else []


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Find the docstrings of a module, of attributes too: line, text, and whether it should be an imperative."""
    for owner in owners(tree):
        body = getattr(owner, "body", None)
        for place, one in enumerate(body if isinstance(body, list) else []):
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, one.value.value, place == 0 and is_imperative(owner)


class Parts(NamedTuple):
    """What a Python file says, each with its line, found in one walk: a second one takes as long as the reading."""

    docstrings: list[tuple[int, str, bool]]
    literals: list[tuple[int, str]]
    names: list[tuple[int, str]]


@cache
def parts_of(source: str, *, texts: bool = True) -> Parts:
    """List docstrings, and with `texts` also the literals with a blank, and the names that are bound."""
    tree = ast.parse(source)
    parts = Parts([*docstrings(tree)], [], [])
    for node in ast.walk(tree) if texts else ():
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and re.search(r"\s", node.value):
                parts.literals.append((node.lineno, node.value))
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                parts.names.append((node.lineno, node.id))
        elif isinstance(node, ast.arg):
            parts.names.append((node.lineno, node.arg))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            parts.names.append((node.lineno, node.name))
    return parts


def prose_in(source: str, *, texts: bool = True) -> list[tuple[int, str]]:
    """List the prose of a Python file, docstrings and comments, each with its line.

    Args:
        source: Its content.
        texts: Whether literals count as well; one without a blank is a name.
    """
    parts = parts_of(source, texts=texts)
    prose = parts.literals if texts else [(line, text) for line, text, _ in parts.docstrings]
    tokens = tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__)
    return prose + [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def names_without_noun(source: str, words: Collection[str] = frozenset(WITHOUT_NOUN)) -> Iterator[tuple[int, str]]:
    """Find what a Python file binds to names without a noun, each with its line."""
    return ((line, name) for line, name in parts_of(source).names if name in words)


def found_in(source: str, file: str = "file.py", *, texts: bool = True) -> list[Found]:
    """Find the words to replace in a Python file."""
    prose = prose_in(source, texts=texts)
    found = [Found(file, begin + line, word) for begin, text in prose for line, word in words_in(text)]
    if texts:
        found += [Found(file, begin + line, turn) for begin, text in prose for line, turn in turns_in(text)]
    for line, text, of_function in parts_of(source, texts=texts).docstrings:
        word = first_word(text, of_function=of_function)
        found += [Found(file, line, f"«{word}» begins a docstring")] if word else []
    return sorted(found)


def found_beside(text: str, file: str) -> list[Found]:
    """Find the words to replace in comments of YAML, and in the names of cases."""
    said = re.compile(r"(?:^|\s)#\s(.*)$|^\s*- name: (.*)$")
    lines = [(line, found) for line, text in enumerate(text.splitlines(), 1) if (found := said.search(text))]
    return [Found(file, line, word) for line, found in lines for _, word in words_in(found[1] or found[2])]


def found_on(page: str, file: str = "page.md") -> list[Found]:
    """Find the words and turns to replace on a page, outside of its blocks of code."""
    prose = without(BLOCK, page)
    turns = () if file == "CHANGELOG.md" else turns_in(prose)  # released versions are described as they were
    return sorted(Found(file, 1 + line, word) for line, word in (*words_in(prose), *turns))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("folder", [*STOREYS, *BESIDE])
def test_the_code_uses_none_of_these_words(folder: str) -> None:
    paths = [path for path in code_in(folder) if path != Path(__file__)]
    assert paths
    found = [one for path in paths for one in found_in(read(path), name_of(path), texts=folder in STOREYS)]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize(("words", "budgets"), [(WITHOUT_NOUN, NAMES), (VAGUE, NAMES_VAGUE)], ids=["noun", "vague"])
@pytest.mark.parametrize("storey", STOREYS)
def test_a_storey_has_as_many_names_without_a_noun_as_its_budget_says(
    storey: str, words: set[str], budgets: dict[str, int]
) -> None:
    """More are too many; if there are fewer, the budget has to be lowered, so that it never grows again."""
    paths, budget = code_in(storey), budgets[storey]
    names = [Found(name_of(path), *name) for path in paths for name in names_without_noun(read(path), words)]
    assert len(names) >= budget, f"lower the budget: {storey} has {len(names)}"
    assert len(names) <= budget, "\n".join([f"{len(names)}, not {budget}:", *map(str, names)])


def test_a_page_uses_none_of_these_words() -> None:
    found = [one for page in PAGES for one in found_on(read(page), name_of(page))]
    assert not found, "\n".join(map(str, found))


def test_comments_of_yaml_and_names_of_cases_use_none_of_these_words() -> None:
    found = [one for file in YAML for one in found_beside(read(file), name_of(file))]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('x = "the rows behind it"', ["behind"]),
        ('x = f"{y} gives {z}"', ["gives"]),
        ("x = 1  # nobody knows", ["nobody"]),
        ('x = "those\\n  that wait"', ["those", "those that"]),
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


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("It is no table. There is no table, it is no longer one, and is no more than a file.", ["is no X"]),
        ("It is made\n  Anew, and goes on.", ["anew", "go on"]),
        ("Rows that are there; `what is there`.", ["that is there"]),
        ("As it was told. They told us.", ["told."]),
        ("The end of the log of a pipeline of ours. The end of the log of ours.", ["of … of … of"]),
        ("It is to be read beside those.", ["is to be", "beside", "those"]),
        ("It is removed when the rows were read. It was removed when they were read.", ["is done when it was"]),
        ("It tells of what it takes in.", ["told of", "take in"]),
    ],
)
def test_turns_are_found_in_texts_and_idioms_are_not(text: str, turns: list[str]) -> None:
    assert [turn for _, turn in turns_in(text)] == turns


def test_names_without_a_noun_are_found_where_they_are_bound() -> None:
    source = "def told(given, *, seq):\n    said = {one: seq for one in given}\n    return given, said.found\n"
    assert sorted(names_without_noun(source)) == [(1, "given"), (1, "told"), (2, "one"), (2, "said")]


def test_a_page_is_read_outside_of_its_blocks_of_code() -> None:
    page = "It is behind the watermark.\n\n```sh\nls behind\n```\n\nRows behind it.\n"
    assert found_on(page) == [Found("page.md", 7, "behind")]
