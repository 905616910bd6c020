"""The committed notebooks: plain Markdown and text outputs, byte for byte the same if the chapter is unchanged."""

from __future__ import annotations

import json
import re

from nbformat import NotebookNode, v4

from press.book import CHAPTERS, Book, Page
from press.citations import citations
from press.imprint import colab, edition, imprint
from press.plain import Plain
from press.quiet import title
from press.stage import dumps

NOTEBOOKS = "notebooks"
SETUP_TAG = "setup"
TITLED = "#@title "
UNCOMPARED = "nbval-ignore-output"
# Colab shows a form instead of the code; Jupyter folds the code.
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}
TITLE = re.compile(r"^# .+$", re.M)
TEXT = {"text/plain", "text/markdown"}
METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SETUP = """\
#@title Setup: installs the library where it is missing, as on Colab
import importlib.util
import os

# Before torch is imported: on two cores more threads are many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if importlib.util.find_spec("{name}") is None:
{install}"""
FROM_REPOSITORY = '    %pip install -q "{name}[notebooks] @ git+{url}"'
FROM_WHEEL = """\
    from pathlib import Path

    wheels = sorted(Path().absolute().glob("{name}-*.whl"))
    if not wheels:
        raise ModuleNotFoundError("{name} is missing: put its wheel beside this notebook or pip install '.[notebooks]'")
    %pip install -q "{{wheels[-1]}}[notebooks]\""""


def notebooks(book: Book) -> dict[str, bytes]:
    """Return every chapter's notebook, as path below notebooks/ → content."""
    built = json.loads((book.root / "_build/labels.json").read_text("utf-8"))
    sources = citations(book.root / CHAPTERS / "references.bib")
    names = [page.name for page in book.notebooks]
    setup, content = setup_cell(book.project), imprint(book)
    made = {}
    for page in book.notebooks:
        plain = Plain(page.name, **built, citations=sources, notebooks=names)
        made[f"{page.name}.ipynb"] = dumps(notebook(page, plain, setup, content)).encode()
    return made


def setup_cell(project: dict) -> NotebookNode:
    """Return the cell that installs the library from its repository or, without one, from a wheel next to the notebook.

    pip then checks the versions of all dependencies.
    """
    url = project.get("urls", {}).get("Repository")
    install = (FROM_REPOSITORY if url else FROM_WHEEL).format(name=project["name"], url=url)
    cell = v4.new_code_cell(SETUP.format(name=project["name"], install=install))
    cell.metadata |= FOLDED | {"tags": [SETUP_TAG, UNCOMPARED]}
    return cell


def notebook(page: Page, plain: Plain, setup: NotebookNode, content: dict) -> NotebookNode:
    """Return a chapter as a notebook that Jupyter shows and nbval can compare; ``content`` is the book's imprint."""
    first, *rest = page.cells
    cells = [*_cells(first, plain), setup, *(made for cell in rest for made in _cells(cell, plain))]
    if link := colab(content, f"{NOTEBOOKS}/{page.name}.ipynb"):
        cells[0].source = TITLE.sub(rf"\g<0>\n\n[Open in Colab]({link})", cells[0].source, count=1)
    cells.append(v4.new_markdown_cell(f"*{content['title']}.* {edition(content)}."))
    result = v4.new_notebook(cells=[NotebookNode(cell) for cell in cells], metadata=METADATA)
    count = 0
    for number, cell in enumerate(result.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            # nbval compares no outputs of a cell without an execution count.
            count += 1
            cell.execution_count = count
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = count
    return result


def _cells(cell: NotebookNode, plain: Plain) -> list[NotebookNode]:
    if cell.cell_type != "code":
        return [v4.new_markdown_cell(plain.render(cell.source))]
    tags = list(cell.metadata.get("tags", []))
    outputs = text_outputs(cell.outputs)
    if outputs is None and UNCOMPARED not in tags:
        tags.append(UNCOMPARED)
    kept = [] if UNCOMPARED in tags else outputs
    metadata = {"tags": tags} if tags else {}
    source = cell.source
    if folded := title(cell) or _checked(cell, plain):
        # Jupyter shows the first line of a folded cell; Colab makes it the title of a form.
        metadata, source = metadata | FOLDED, f"{TITLED}{folded}\n{source}"
    code = v4.new_code_cell(source, metadata=metadata, outputs=kept)
    captioned = cell.metadata.get("table") or cell.metadata.get("mystnb", {}).get("figure", {})
    if "caption" not in captioned:
        return [code]
    head = f"*{plain.number(captioned['name'])}.* " if "name" in captioned else ""
    return [code, v4.new_markdown_cell(head + plain.render(captioned["caption"]))]


def _checked(cell: NotebookNode, plain: Plain) -> str:
    names = ", ".join(plain.name(label) for label in cell.metadata.get("verifies", []))
    return f"Check of {names}" if names else ""


def text_outputs(outputs: list[NotebookNode]) -> list[NotebookNode] | None:
    """Return printed text as one stream, then other text outputs such as tables; None if an output is not only text."""
    printed = "".join(out.text for out in outputs if out.get("name") == "stdout")
    kept = [v4.new_output("stream", name="stdout", text=printed)] if printed else []
    for output in outputs:
        if output.output_type == "stream":
            continue
        if not set(output.get("data", {"": ""})) <= TEXT:
            return None
        kept.append(v4.new_output(output.output_type, data=output.data))
    return kept
