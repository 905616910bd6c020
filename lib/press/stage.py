"""The stage: the folder from which the pages are built, with chapters replaced by their executed notebooks."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from urllib.parse import quote

import nbformat

from press.book import CHAPTERS, Book
from press.cells import cells
from press.course import FILE as LECTURES
from press.course import course
from press.engine import CONF
from press.imprint import FILES
from press.labels import Check, Claims
from press.ledger import ledger
from press.live import FOLDER, live
from press.manifest import FILE, dumped, manifest
from press.quiet import line, title
from press.reference import reference
from press.seeds import Tried, tried
from press.sources import Sources

STAGE = Path("_build/stage")
WIDGET = "application/vnd.jupyter.widget-view+json"
SVG, HTML, MARKDOWN = "image/svg+xml", "text/html", "text/markdown"
INK, STYLE = f"{FOLDER}/ink.css", '<defs><style type="text/css">'  # STYLE begins a style sheet of Matplotlib's
CODE = "."  # comes before the name of a figure or table of folded code, as a check's anchor comes before its labels
MADE = {"ledger": ledger, "reference": reference, "course": course}
DIRECTIVE = re.compile(rf"^```\{{({'|'.join(MADE)})\}}\n```$", re.M)
TABLE = """::::{{table}} {caption}
:name: {name}

{rows}
::::"""


def stage(book: Book) -> dict[str, bytes]:
    """Return everything from which the pages are built, as path → content."""
    files = {name: (book.root / name).read_bytes() for name in ("_config.yml", "_toc.yml", *FILES)}
    files["conf.py"] = CONF.encode()
    served = book.root / CHAPTERS / "_static"
    paths = {f"_static/{path.relative_to(served).as_posix()}": path for path in served.rglob("*")}
    paths |= {path.relative_to(book.root).as_posix(): path for path in (book.root / CHAPTERS).glob("*.bib")}
    paths[LECTURES] = book.root / LECTURES
    files |= {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    files |= live(book)
    ink = " ".join(files.get(INK, b"").decode().split())
    claims, tries, sources = Claims(book), tried(book), Sources(book)
    for page in book.pages:
        if page.is_notebook:
            checks = [check for check in claims.checks if check.page == page.name]
            staged = tabled(folded(sources.led(still(page.notebook, ink), cells(book, page.name)), checks, tries))
            files[f"{CHAPTERS}/{page.name}.ipynb"] = dumps(staged).encode()
        else:
            files[f"{CHAPTERS}/{page.name}.md"] = _made(book, page.cells[0].source).encode()
    files |= {f"figures/{name}.svg": inked(svg, ink).encode() for name, svg in figures(book).items()}
    files |= sources.used
    return files | {FILE: dumped(manifest(book))}


def _made(book: Book, text: str) -> str:
    """Return the text of a page with its directives replaced by the ledger, the reference or the course."""
    return DIRECTIVE.sub(lambda found: MADE[found[1]](book), text)


def figures(book: Book) -> dict[str, str]:
    """Return name → SVG for every vector figure with a name, ``mystnb: {figure: {name: …}}``."""
    return {
        cell.metadata["mystnb"]["figure"]["name"]: output.data[SVG].rstrip("\n") + "\n"
        for page in book.notebooks
        for cell in page.cells
        if cell.metadata.get("mystnb", {}).get("figure", {}).get("name")
        for output in cell.outputs
        if SVG in output.get("data", {})
    }


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Make ``folder`` contain exactly ``files``; unchanged files keep their times, so Sphinx does not reread them."""
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def inked(text: str, ink: str) -> str:
    """Return an SVG, or HTML whose frames are SVGs, with the rules ``ink`` in each style sheet."""
    for begin, rules in ((STYLE, ink), (_quoted(STYLE), _quoted(ink))):
        text = text.replace(begin, begin + rules)
    return text


def _quoted(text: str) -> str:
    return quote(text.replace('"', "'"), safe=" :;'=/")


def still(notebook: nbformat.NotebookNode, ink: str = "") -> nbformat.NotebookNode:
    """Return a copy without times, ids and widgets, which vary between runs or need a kernel; figures get ``ink``."""
    still = copy.deepcopy(notebook)
    still.metadata = {key: still.metadata[key] for key in ("kernelspec", "language_info") if key in still.metadata}
    for number, cell in enumerate(still.cells):
        cell.id = f"cell-{number}"
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_widget_alone(output)]
            for output in cell.outputs:
                data = output.get("data", {})
                data.pop(WIDGET, None)
                data |= {kind: inked(data[kind], ink) for kind in (SVG, HTML) if kind in data}
    return still


def _is_widget_alone(output: nbformat.NotebookNode) -> bool:
    """Whether an output is only a widget, such as a progress bar, which a page cannot show."""
    kinds = set(output.get("data", {}))
    return WIDGET in kinds and kinds <= {WIDGET, "text/plain"}


def folded(notebook: nbformat.NotebookNode, checks: list[Check], tries: dict[str, Tried]) -> nbformat.NotebookNode:
    """Return the notebook with code that does not teach folded under a line, and a target before each check.

    The prompt of a closed cell is the line; the prompt of an open one carries labels for :mod:`press.site.folds`.
    """
    by_cell = {check.cell - 1: check for check in checks}
    cells = []
    for at, cell in enumerate(notebook.cells):
        check = by_cell.get(at)
        if check:
            cells.append(nbformat.v4.new_markdown_cell(f"({check.anchor})=", id=check.anchor))
            _fold(cell, "hide-cell", line(check, tries), " ".join((check.anchor, *check.verifies)))
        elif cell.cell_type == "code" and (words := title(cell)):
            captioned = cell.metadata.get("mystnb", {}).get("figure", {}) | cell.metadata.get("table", {})
            _fold(cell, "hide-input", words, f"{CODE} {captioned.get('name', '')}")
        cells.append(cell)
    notebook.cells = cells
    return notebook


def _fold(cell: nbformat.NotebookNode, how: str, words: str, labels: str) -> None:
    cell.metadata.tags = [*cell.metadata.get("tags", []), how]
    prompts = {"code_prompt_show": words, "code_prompt_hide": labels}
    cell.metadata.mystnb = {**cell.metadata.get("mystnb", {}), **prompts}


def tabled(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the notebook with each captioned table as a Sphinx table, so that Sphinx numbers it."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if caption := cell.metadata.pop("table", None):
            for output in [output for output in cell.outputs if is_table(output)]:
                cell.outputs.remove(output)
                text = TABLE.format(**caption, rows=output.data[MARKDOWN])
                cells.append(nbformat.v4.new_markdown_cell(text, id=f"{cell.id}-table"))
    notebook.cells = cells
    return notebook


def is_table(output: nbformat.NotebookNode) -> bool:
    """Whether an output is what ``normgeom.view.table`` displays."""
    return output.get("data", {}).get(MARKDOWN, "").startswith("|")


def dumps(notebook: nbformat.NotebookNode) -> str:
    """Return a notebook as text; equal notebooks give equal text."""
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"
