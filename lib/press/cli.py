"""``python -m press COMMAND``: the steps of the Makefile that are more than one program."""

from __future__ import annotations

import os
from pathlib import Path

import click

from press.book import Book

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
    from press.stage import STAGE, put, stage

    context.invoke(check)
    put(context.obj.root / STAGE, stage(context.obj))


@main.command("site")
@click.argument("html", type=FOLDER, default="_build/html")
@click.pass_obj
def site_command(book: Book, html: Path) -> None:
    """Build the pages from _build/stage, in _build/html or another folder; exit 1 on any warning."""
    from press.engine import pages
    from press.stage import STAGE

    if not pages(book.root / STAGE, book.root / html):
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

    try:
        pdf(book)
    except FileNotFoundError as missing:
        raise click.ClickException(str(missing)) from missing


@main.command("figures")
@click.pass_obj
def figures_command(book: Book) -> None:
    """Write the named figures of the executed chapters to figures/NAME.svg."""
    from press.figures import figures

    folder = book.root / "figures"
    folder.mkdir(exist_ok=True)
    for name, svg in figures(book).items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


@main.command("times")
@click.argument("of", type=click.Choice(["book", "test"]))
@click.pass_obj
def times_command(book: Book, of: str) -> None:
    """Say where the processor time of the last `make book` or `make test` went."""
    from press.times import table

    for line in table(book, of):
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
