"""``python -m press COMMAND``: the steps of the Makefile that are more than one program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from press.book import Book
from press.versions import COMMANDS, keep, note

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
@click.option("--root", type=FOLDER, default=".", help="The folder of the book.")
@click.pass_context
def main(context: click.Context, root: Path) -> None:
    """Turn executed chapters into pages, notebooks and figures."""
    context.obj = Book(root)


@main.command()
@click.pass_obj
def check(book: Book) -> None:
    """Say what is wrong with the chapters; exit 1 if anything is."""
    from press.refusals import refusals

    if found := refusals(book):
        for message in found:
            click.echo(f"refused: {message}", err=True)
        raise SystemExit(1)


@main.command("reuse")
@click.argument("written", type=click.Path(exists=True, path_type=Path))
@click.argument("executed", type=click.Path(path_type=Path))
def reuse_command(written: Path, executed: Path) -> None:
    """Give the notebook EXECUTED the words of WRITTEN; exit 1 if there is none or its code is another."""
    from nbformat import read, write

    from press.reuse import reused

    result = reused(read(written, 4), read(executed, 4)) if executed.is_file() else None
    if result is None:
        raise SystemExit(1)
    ran = executed.stat().st_mtime_ns
    write(result, executed)
    for path in (written, executed):  # its outputs are as old as before: a library changed since still counts as newer
        os.utime(path, ns=(ran, ran))


@main.command("chapter")
@click.argument("name")
@click.argument("title")
@click.pass_obj
def chapter_command(book: Book, name: str, title: str) -> None:
    """Write a small true chapter to replace, chapters/NAME.md, and put it behind the last one."""
    from press.chapter import chapter

    try:
        files = chapter(book, name, title)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    for path, content in files.items():
        (book.root / path).write_bytes(content)
        click.echo(f"wrote {path}")


@main.command("stage")
@click.pass_context
def stage_command(context: click.Context) -> None:
    """Check the chapters, then write what the pages are built from to _build/stage."""
    from press.stage import put, stage

    context.invoke(check)
    put(context.obj.root / "_build/stage", stage(context.obj))


@main.command("site")
@click.argument("html", type=FOLDER, default="_build/html")
@click.pass_obj
def site_command(book: Book, html: Path) -> None:
    """Build the pages from _build/stage, in _build/html or another folder; exit 1 on any warning."""
    from press.engine import pages

    if not pages(book.root / "_build/stage", book.root / html):
        raise click.ClickException("the pages were not built without warnings")


@main.command("notebooks")
@click.pass_obj
def notebooks_command(book: Book) -> None:
    """Write notebooks/ from the executed chapters and the labels of the built pages."""
    from press.notebooks import NOTEBOOKS, notebooks
    from press.stage import put

    put(book.root / NOTEBOOKS, notebooks(book))


@main.command("colab")
@click.pass_obj
def colab_command(book: Book) -> None:
    """Write _build/colab from notebooks/, with the library's wheel in each."""
    from press.colab import colab
    from press.stage import put

    put(book.root / "_build/colab", colab(book))


@main.command("pdf")
@click.pass_obj
def pdf_command(book: Book) -> None:
    """Print the built pages as one PDF to _build/pdf."""
    from press.edition.pdf import pdf

    _make(pdf, book)


@main.command("epub")
@click.pass_obj
def epub_command(book: Book) -> None:
    """Pack the built pages as an EPUB to _build/epub."""
    from press.edition.epub import epub

    _make(epub, book)


def _make(edition: Callable[[Book], Path], book: Book) -> None:
    try:
        edition(book)
    except FileNotFoundError as missing:
        raise click.ClickException(str(missing)) from missing


@main.command("social")
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def social_command(book: Book, target: Path) -> None:
    """Write the picture that links to the book show, a PNG, to TARGET; needs Chromium."""
    from press.edition.social import social

    _make(lambda book: social(book, target), book)


@main.command("figures")
@click.pass_obj
def figures_command(book: Book) -> None:
    """Write the named figures of the executed chapters to figures/NAME.svg."""
    from press.figures import figures

    folder = book.root / "figures"
    folder.mkdir(exist_ok=True)
    for name, svg in figures(book).items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


@main.command("notes")
@click.argument("tag", default="")
@click.pass_obj
def notes_command(book: Book, tag: str) -> None:
    """Print what the changelog says of the release TAG."""
    from press.release import notes

    try:
        click.echo(notes(book, tag), nl=False)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


@main.command("sums")
@click.argument("folder", type=FOLDER)
def sums_command(folder: Path) -> None:
    """Write the digests of the files in FOLDER to its SHA256SUMS."""
    from press.release import SUMS, sums

    (folder / SUMS).write_text(sums(folder), encoding="utf-8")


@main.command("times")
@click.argument("of", type=click.Choice(["book", "test"]))
@click.pass_obj
def times_command(book: Book, of: str) -> None:
    """Say where the processor time of the last `make book` or `make test` went."""
    from press.times import table

    for line in table(book, of):
        click.echo(line)


@main.command("tried")
@click.argument("command", type=click.Choice(tuple(COMMANDS)))
@click.argument("outcome")
@click.pass_obj
def tried_command(book: Book, command: str, outcome: str) -> None:
    """Note that COMMAND has passed, with what is installed where this runs."""
    note(book, command, outcome)


@main.command("keep")
@click.pass_obj
def keep_command(book: Book) -> None:
    """Take what was noted here into records/tried.csv, of which the page of versions is made."""
    keep(book)


@main.command("where")
@click.argument("what", nargs=-1, required=True)
@click.pass_obj
def where_command(book: Book, what: tuple[str, ...]) -> None:
    """Say in which files and lines WHAT stands: claim-…, "Fig. 6.2", "normgeom survey", a function."""
    from press.where import where

    if not (lines := where(book, " ".join(what))):
        raise click.ClickException(f"nothing is called {' '.join(what)}; numbers such as Fig. 6.2 need a built book")
    for line in lines:
        click.echo(line)


@main.command("lines")
@click.pass_obj
def lines_command(book: Book) -> None:
    """Count the lines of code in the chapters; exit 1 if a limit of pyproject.toml is passed."""
    from press.lines import table, too_long

    for line in table(book):
        click.echo(line)
    if found := list(too_long(book)):
        raise click.ClickException("\n".join(found))
