"""`tidemark report`: a page of a pipeline for people without Dagster.

Here: what a person types and reads, and where the page is written. Not here: the page (report/).
"""
# ruff: noqa: PLC0415 - Delta and matplotlib take a second to import, so each command imports what it needs

import os
from collections.abc import Sequence
from pathlib import Path

import click

from tidemark.pipelines.command_line import (
    in_words,
    known_settings,
    read_specs,
    spec_paths,
    verbose_option,
    warehouse_option,
)


@click.command()
@spec_paths
@warehouse_option
@click.option(
    "--out",
    metavar="FILE_OR_DIR",
    type=click.Path(path_type=Path),
    help="The page, a name that ends in .html; or the folder for pages. [default: ./NAME_report.html]",
)
@verbose_option
def report(*, specs: tuple[Path, ...], warehouse: Path | None, out: Path | None, verbose: bool) -> None:
    """Write a page about each pipeline: what came in, what went where and why, as of the last commit.

    It is one self-contained HTML file, to open in a browser or to send to somebody. Tables are only read.

    Exit status: 0 done, also when a pipeline has not run yet; 2 bad spec or usage; 1 a failure.
    """
    with in_words(verbose=verbose):
        files = read_specs(specs, ())
    pages = _pages([file.spec.name for file in files], out)
    with in_words(verbose=verbose):
        from tidemark.pipelines.report.page import page_of
        from tidemark.pipelines.report_text import telling
        from tidemark.resources.workspace import Workspace

        for file, page in zip(files, pages, strict=True):
            with telling(file.spec.name) as tell:
                text = page_of(Workspace(file, known_settings(warehouse).warehouse, tell=tell))
            _write(page, text)
            click.echo(f"{file.spec.name}: {page}")


def _pages(names: Sequence[str], out: Path | None) -> list[Path]:
    """Where the page of each pipeline is written."""
    if len(set(names)) < len(names):
        raise click.UsageError("Two specs have the same name, so their pages would have the same name too.")
    if out is None or out.is_dir() or out.suffix.lower() not in {".html", ".htm"}:
        if out is not None and out.exists() and not out.is_dir():
            raise click.BadParameter(f"{out} is a file; a folder or a name that ends in .html is expected.")
        return [(out or Path()) / f"{name}_report.html" for name in names]
    if len(names) > 1:
        raise click.BadParameter(f"{out} is one page; a folder is expected for those of {len(names)} pipelines.")
    return [out]


def _write(page: Path, text: str) -> None:
    """Writes the page whole, or not at all: somebody may have the last one open."""
    page.parent.mkdir(parents=True, exist_ok=True)
    new = page.with_name(f".{page.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(page)
