"""Documents, pins and the wheel say and hold what the code does: commands, links, specs, columns, files, versions."""

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

import pytest

import tidemark as tm
from tests import ROOT
from tests.wheels import STOREYS, build_wheel, copy_checkout
from tidemark.assets import checks
from tidemark.assets.ingestion import waiting_input
from tidemark.assets.joins import OF_JOINS
from tidemark.pipelines.cli import main
from tidemark.resources import tables
from tidemark.timeops import columns
from tidemark.timeops.expressions.tokens import WORKING
from tidemark.timeops.rules.reasons import Reason, Stage
from tidemark.timeops.spec import parse_spec
from tools import spec_reference

CODE = sorted(path for storey in STOREYS for path in (ROOT / storey).rglob("*.py"))
OUTSIDE_DOCS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "findings/README.md")
PAGES = sorted([*map(Path, OUTSIDE_DOCS), *(page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md"))])
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def read(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    return read(page).split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> list[str]:
    """Return the code words in the first cell of each row of the tables of a text."""
    cells = [row.split("|")[1] for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def pins() -> dict[str, str]:
    return dict(line.split("==") for line in read("constraints.txt").splitlines())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_constraints_are_exact_versions_without_addresses_and_in_order() -> None:
    lines = read("constraints.txt").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", line)] == []
    assert lines == sorted(lines, key=str.lower)
    assert "tidemark" not in map(normal, pins())


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    wanted = [*project["dependencies"], *(one for more in project["optional-dependencies"].values() for one in more)]
    names = {normal(re.split(r"[<>=!~\[ ;]", requirement)[0]) for requirement in wanted}
    assert names - {normal(name) for name in pins()} == set()


def test_no_file_of_the_environment_names_an_address() -> None:
    for path in ("constraints.txt", "pyproject.toml", "Makefile", "tools/setup.sh", ".ci/run"):
        assert re.findall(r"(?:https?|git|ssh)://(?!localhost)\S+", read(path)) == [], path


def test_every_make_command_that_is_written_down_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    written = {
        f"{page}: make {first or second}": first or second
        for page in (*PAGES, Path(".ci/run"))
        for first, second in re.findall(r"^(?:step )?make ([a-z-]+)|`make ([a-z-]+)[ `]", read(page), re.MULTILINE)
    }
    assert [place for place, target in written.items() if target not in targets] == []
    assert targets & {*written.values()}


def test_the_readme_shows_the_two_commands_and_help_lists_every_target() -> None:
    makefile = read("Makefile")
    assert {"make demo", "make test"} <= {line.split("  ")[0] for line in read("README.md").splitlines()}
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    assert re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE) == targets
    assert set(targets) == set(re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[0].split())


def leads_somewhere(page: Path, link: str) -> bool:
    """Return whether a link of a page leads to a file of ours, and to a heading that it has."""
    path, _, heading = link.partition("#")
    target = (ROOT / page.parent / path).resolve() if path else ROOT / page
    return target.is_file() and target.is_relative_to(ROOT) and (not heading or heading in anchors(target))


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(read(page)) if not link.startswith("http")]
    assert len(links) > 100
    assert [f"{page}: {link}" for page, link in links if not leads_somewhere(page, link)] == []


def test_every_document_can_be_reached_from_the_readme_in_three_steps() -> None:
    reached = {ROOT / "README.md"}
    for _ in range(3):
        for page in [page for page in reached if page.suffix == ".md"]:
            reached |= {(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(read(page))}
    assert {ROOT / page for page in PAGES} - reached == set()


def test_every_spec_that_is_shown_is_valid() -> None:
    shown = {page: re.findall(r"^```yaml\n(name: .*?)^```$", read(page), re.MULTILINE | re.DOTALL) for page in PAGES}
    for page, specs in shown.items():
        for text in specs:
            parse_spec(text, file=str(page))
    assert {Path("README.md"), Path("docs/reference/spec.md")} <= {page for page, specs in shown.items() if specs}


def test_the_semantics_name_the_reasons_and_columns_of_dead_letters() -> None:
    code = read("timeops/dead_letters.py")
    page = "docs/semantics/dead-letters.md"
    text = section(page, "Reasons") + section(page, "Columns")
    listed = re.findall(r"^\| `(\w+)` \| (ingest|time|window|join) \|", text, re.MULTILINE)
    assert sorted(listed) == sorted([*((one, one.stage) for one in Reason), (Reason.BAD_EXPRESSION, Stage.WINDOW)])
    given = re.findall(r' AS (\w+)"', code)
    carried = re.search(r"_FROM_LOG = \((.*?)\)", code)
    assert carried is not None
    more = ("TIMELINE", "EVENT_TIME", "WATERMARK")
    given += [str(getattr(columns, name.removeprefix("c."))) for name in (*carried[1].split(", "), *more)]
    assert set(first_cells(text)) == {*Reason, *given}


DOCUMENTED = r"pyspark(\.errors|\.logger|\.sql(\.(functions|types|window|avro\.functions))?)?"


def test_contributing_names_every_module_of_pyspark_that_is_not_documented() -> None:
    code = "\n".join(map(read, CODE))
    used = set(re.findall(r"^ *from ((?:pyspark|google)[\w.]*) import", code, re.MULTILINE))
    undocumented = {module for module in used if not re.fullmatch(DOCUMENTED, module)}
    named = {
        row.split("`")[1] for row in section("CONTRIBUTING.md", "Ways into PySpark").splitlines() if "| `" in row
    }
    assert {module.removesuffix(".retries") for module in undocumented} == named


def test_the_reference_names_every_check_and_whether_it_blocks() -> None:
    rows = [row for row in read("docs/reference/checks.md").splitlines() if row.startswith("| `")]
    written = {row.split("`")[1]: row.rstrip(" |").endswith("yes") for row in rows if row.endswith(("yes |", "no |"))}
    known = {one.name: one.blocking for every in (*checks.CHECKS.values(), OF_JOINS) for one in every}
    assert written == known | {waiting_input.HELD_BACK: False}


def test_the_keys_of_a_spec_stand_on_their_page_as_they_are_generated() -> None:
    page = spec_reference.PAGE.read_text(encoding="utf-8")
    assert page == spec_reference.with_generated(page), "run `make docs`"


def test_the_reference_names_every_command_and_option() -> None:
    page = read("docs/reference/commands.md")
    for name, command in main.commands.items():
        assert f"`tidemark {name}" in page, name
        options = [one for parameter in command.params for one in parameter.opts if one.startswith("--")]
        assert [one for one in options if f"`{one}" not in page] == [], name


def test_the_reference_names_every_control_table_and_its_columns() -> None:
    page = read("docs/reference/tables.md")
    for table, schema in tables.CONTROL_SCHEMAS.items():
        if not table.startswith("_state/"):
            text = section("docs/reference/tables.md", table)
            assert set(schema.names) - set(first_cells(text)) == set(), table
    names = [value for name, value in vars(tables).items() if name.isupper() and isinstance(value, str)]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_file_of_the_code_that_is_named_is_there() -> None:
    of_code = r"`((?:assets|benchmarks|pipelines|resources|tests|timeops|tools)/[\w/]*(?:\.py)?)`"
    named = [(page, path) for page in PAGES for path in re.findall(of_code, read(page))]
    assert len(named) > 100
    assert [f"{page}: {path}" for page, path in named if not (ROOT / path).exists()] == []


def test_the_map_of_the_tour_has_one_line_for_each_file_of_the_product() -> None:
    mapped = re.findall(r"^\| `([\w/]+\.py)` \|", section("docs/tour.md", "The map"), re.MULTILINE)
    assert sorted(mapped) == sorted(
        str(path.relative_to(ROOT))
        for path in CODE
        if len(ast.parse(read(path)).body) > 1  # not the charter of a room
    )


def test_a_reader_follows_a_record_through_few_files_and_seldom_up_again() -> None:
    rows = re.findall(r"^\| the .* \| (.*) \|$", section("docs/tour.md", "Where to begin reading"), re.MULTILINE)
    stops = [path for row in rows for path in re.findall(r"`([\w/]+/\w+\.py)`", row)]
    from_above = ("pipelines", "assets", "resources", "timeops")
    storeys = [from_above.index(path.split("/")[0]) for path in stops]
    assert len(rows) > 5
    assert len(set(stops)) <= 18, stops
    assert sum(following < storey for storey, following in pairwise(storeys)) <= 4, stops


def test_every_name_that_is_said_to_be_in_a_file_is_there() -> None:
    said = [
        (page, name, path)
        for page in PAGES
        if page != Path("CHANGELOG.md")
        for names, path in re.findall(r"((?:`[\w.]+`(?:,? and |, )?)+)\s+in\s+`([\w/]+/\w+\.py)`", read(page))
        for name in re.findall(r"`(?:\w+\.)*(\w+)`", names)
    ]
    missing = [one for one in said if not re.search(rf"\b{one[1]}\b", read(one[2]))]
    assert [f"{page}: {name} in {path}" for page, name, path in missing] == []


ABOUT_CODE = [page for page in PAGES if page.match("docs/guarantees/*.md") or page == Path("docs/tour.md")]


@pytest.mark.parametrize("page", ABOUT_CODE, ids=str)
def test_every_name_in_a_picture_of_the_code_is_there(page: Path) -> None:
    """Where a function or a table gets another name, the pictures must follow."""
    pictures = re.findall(r"^```text\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL)
    named = {name for text in pictures for name in re.findall(r"(?<![\w/])_?[a-z]+(?:_[a-z]+)+\b(?!\.)", text)}
    files = {name for text in pictures for name in re.findall(r"\b\w+\.py\b", text)}
    words = {word for path in CODE for word in re.findall(r"\w+", read(path))}
    assert sorted(named - words) == []
    assert sorted(files - {path.name for path in CODE}) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.match("docs/guarantees/*.md")], ids=str)
def test_every_test_that_proves_a_guarantee_is_there(page: Path) -> None:
    rows = re.findall(r"^\| `(tests/[\w/]+\.py)` \| (.*) \|$", section(str(page), "Tests"), re.MULTILINE)
    named = [(path, name) for path, names in rows for name in re.findall(r"`(test_\w+)`", names)]
    assert [one for one in named if f"def {one[1]}(" not in read(one[0])] == []
    assert len(named) > 5


def code_in(folder: str) -> list[Path]:
    """Return the Python files of a folder, without the environments that `make bench-peers` installs into one."""
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "/." not in str(path.relative_to(ROOT)))


def test_docstrings_and_comments_name_files_that_are_there() -> None:
    """«Not here: the rules (engine.py)» sends the next reader to a file: it moves, and the docstring must follow."""
    code = [path for folder in (*STOREYS, "examples", "benchmarks", "tools") for path in code_in(folder)]
    there = {str(path.relative_to(ROOT)) for path in (*code, *(ROOT / "tests").rglob("*.py"))}
    named = {(path.name, one.lstrip("./")) for path in code for one in re.findall(r"[\w./]*\b\w+\.py\b", read(path))}
    assert len(named) > 200
    assert [one for one in named if not any(f"/{file}".endswith(f"/{one[1]}") for file in there)] == []


def test_columns_that_exist_only_while_spark_computes_have_names_that_no_column_of_a_user_has() -> None:
    stored_by_earlier_versions = ROOT / "resources/delta/migration.py"
    text = "\n".join(read(path) for path in CODE if path != stored_by_earlier_versions)
    names = {name for name in re.findall(r"""["'`]__[a-z]\w*""", text) if not name.endswith("__")}
    assert len(names) > 100
    assert [name for name in names if not name[1:].startswith(WORKING)] == []


def test_no_code_cuts_a_text_where_only_python_ends_a_line() -> None:
    """Values, names and messages may hold U+2028 or U+0085; lines of JSON, logs and files end at line feeds."""
    assert [file.name for file in CODE if ".splitlines(" in read(file)] == []


def test_a_wheel_holds_one_top_level_name_and_every_file_of_the_storeys(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    copy_checkout(checkout)
    before = sorted(checkout.rglob("*"))
    wheel = build_wheel(checkout, tmp_path / "wheels")
    assert sorted(checkout.rglob("*")) == before
    assert wheel.name == f"tidemark-{tm.__version__}-py3-none-any.whl"
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"tidemark"}
    own = {f"tidemark/{path.name}" for path in (checkout / "tidemark").iterdir() if path.is_file()}
    inside = {f"tidemark/{path.relative_to(checkout)}" for name in STOREYS for path in (checkout / name).rglob("*.*")}
    assert names == own | inside


def test_every_public_name_is_there_and_no_other() -> None:
    assert [name for name in tm.__all__ if not hasattr(tm, name)] == []
    assert dir(tm) == sorted(tm.__all__)
    assert not hasattr(tm, "windowed")
