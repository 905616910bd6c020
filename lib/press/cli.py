"""``python -m press COMMAND``: the steps of the Makefile that no existing program performs alone."""

from __future__ import annotations

import os
from pathlib import Path

import click

from press.book import HTML, Book

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
@click.option("--root", type=FOLDER, default=".", help="The folder of the book.")
@click.pass_context
def main(context: click.Context, root: Path) -> None:
    """Turn executed chapters into pages, notebooks and figures."""
    context.obj = Book(root)


def refuse(messages: list[str]) -> None:
    """Print each problem, and exit with status 1 if there are any."""
    for message in messages:
        click.echo(f"refused: {message}", err=True)
    if messages:
        raise SystemExit(1)


@main.command()
@click.pass_obj
def check(book: Book) -> None:
    """List the problems of the chapters, including too much code or text; exit 1 if there are any."""
    from press.lines import too_long
    from press.refusals import refusals

    refuse([*refusals(book), *too_long(book)])


@main.command("reuse")
@click.argument("written", type=click.Path(exists=True, path_type=Path))
@click.argument("executed", type=click.Path(path_type=Path))
def reuse_command(written: Path, executed: Path) -> None:
    """Copy the text of WRITTEN into the notebook EXECUTED; exit 1 if EXECUTED is missing or has different code."""
    from nbformat import read, write

    from press.run import reused

    result = reused(read(written, 4), read(executed, 4)) if executed.is_file() else None
    if result is None:
        raise SystemExit(1)
    ran = executed.stat().st_mtime_ns
    write(result, executed)
    for path in (written, executed):  # keep the time of the run: a library changed since then still counts as newer
        os.utime(path, ns=(ran, ran))


@main.command()
@click.pass_obj
def pages(book: Book) -> None:
    """Check the chapters, write _build/stage, and build the pages from it; exit 1 on any warning."""
    from press.engine import pages
    from press.refusals import refusals
    from press.stage import STAGE, put, stage

    refuse(refusals(book))
    put(book.root / STAGE, stage(book))
    if not pages(book.root / STAGE, book.root / HTML):
        raise click.ClickException("building the pages failed or gave warnings")


@main.command("notebooks")
@click.pass_obj
def notebooks_command(book: Book) -> None:
    """Write notebooks/ from the executed chapters and the labels of the built pages."""
    from press.notebooks import NOTEBOOKS, notebooks
    from press.stage import put

    put(book.root / NOTEBOOKS, notebooks(book))


@main.command("pdf")
@click.pass_obj
def pdf_command(book: Book) -> None:
    """Print the built pages as one PDF to _build/pdf."""
    from press.pdf import pdf

    try:
        pdf(book)
    except FileNotFoundError as missing:
        raise click.ClickException(str(missing)) from missing


@main.command("figures")
@click.pass_obj
def figures_command(book: Book) -> None:
    """Write the named figures of the executed chapters to figures/NAME.svg."""
    from press.stage import figures

    folder = book.root / "figures"
    folder.mkdir(exist_ok=True)
    for name, svg in figures(book).items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


@main.command("times")
@click.argument("of", type=click.Choice(["book", "test"]))
@click.pass_obj
def times_command(book: Book, of: str) -> None:
    """Print the time of each step of the last `make book` or `make test`; in CI, exit 1 if the limit is exceeded."""
    from press.times import above, table

    for line in table(book, of):
        click.echo(line)
    if (found := above(book, of)) and os.environ.get("CI"):
        refuse(found)
    for line in found:
        click.echo(line)
