"""The norm report of a model: chapter 7 rerun on it, as one page that can be kept, sent and printed."""

from __future__ import annotations

import ast
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from html import escape
from importlib import metadata
from pathlib import Path

try:
    import nbformat
    import papermill
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient.exceptions import DeadKernelError
    from nbformat import NotebookNode
    from papermill.exceptions import PapermillExecutionError

    from normgeom.commands.finding import find_commit
    from normgeom.jobs.folders import held
    from normgeom.view.page import page
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"report: {error.name} is missing: run `pip install '.[report]'` in the folder of the repository",
        name=error.name,
    ) from error

CHAPTER = Path(__file__).parents[1] / "notebooks/07-inference.ipynb"  # lib/normgeom/notebooks is a link to notebooks/
KERNEL_OPTIONS = [
    "--IPKernelApp.log_level=40",
    # Progress bars as text: standard error is shown while a cell runs, widgets are not.
    "--IPKernelApp.exec_lines=import tqdm.auto; tqdm.auto.tqdm = tqdm.std.tqdm",
]
HEAD = """<p>Norm report</p>
<h1>{model}</h1>
<p>Measured on the corpus {corpus}, {tokens:,} tokens asked for; written {when:%Y-%m-%d %H:%M} UTC.</p>
<p>This is chapter 7 of <cite>The Geometry of Layer Normalization</cite>, run on this model. Its words are the book's
and speak of the small models that the chapter trains; what its cells print and draw is of this run, except where they
show a recorded measurement and say so. The numbers of chapters, statements and figures are the book's.</p>
<details>
<summary>Parameters and versions</summary>
<table>
{rows}
</table>
</details>"""
ROW = '<tr><th scope="row">{}</th><td>{}</td><td>{}</td></tr>'


def write_report(model: str, out: str | os.PathLike, parameters: Mapping[str, object] | None = None) -> Path:
    """Run chapter 7 on a model and write what it shows as one page of HTML.

    Args:
        model: a transformers model, by name or folder, or ``"twins"``.
        out: path of the page, ending in ``.html``.
        parameters: the chapter's other parameters by name; numbers may come as text, as from a command line.

    Progress and warnings go to standard error.  Relative paths start at the current folder.

    Raises:
        ValueError: ``out`` does not end in ``.html`` or is a folder, or the chapter has no such parameter.
        OSError: the model is neither a folder of one nor on the hub; nothing can be written where ``out`` is to be, or
            another report is being written there.
        RuntimeError: a cell of the chapter failed; the message says which and why.

    The first two are raised before any work.  Whatever is raised, what stood at ``out`` is as it was.
    """
    chapter = nbformat.read(CHAPTER, as_version=4)
    known = papermill.inspect_notebook(chapter)
    values = _values(known, model, parameters or {})
    with _appearing(Path(out)) as part:
        if model != "twins":
            find_commit(model)
        cells = _run(chapter, values)
        head = _head(values, {name: parameter["help"] for name, parameter in known.items()})
        part.write_text(page(f"Norm report: {_short(model)}", head, cells), encoding="utf-8")
    return Path(out)


def _values(known: Mapping[str, dict], model: str, given: Mapping[str, object]) -> dict[str, object]:
    """The value of every parameter: what was given, or the chapter's default."""
    others = known.keys() - {"model"}
    if unknown := given.keys() - others:
        raise ValueError(f"parameters: expected names out of {sorted(others)}, got {sorted(unknown)}")
    values = {name: ast.literal_eval(parameter["default"]) for name, parameter in known.items()}
    for name, value in given.items():
        values[name] = value if isinstance(values[name], str) else _read(value)
    return values | {"model": model}


def _read(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value  # the chapter's first cell says what it expected


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A file beside ``out`` that takes its place when the block ends well; that one can be there is tried first."""
    if out.suffix != ".html" or out.is_dir():
        raise ValueError(f"out: expected the name of a file that ends in .html, got {str(out)!r}")
    part = out.with_name(f".{out.name}.part")
    try:
        part.touch()
    except OSError as error:
        raise type(error)(f"out: nothing can be written to {str(out.parent)!r}: {error.strerror}") from error
    with held(out, out.with_name(f".{out.name}.lock")):
        try:
            yield part
            os.replace(part, out)
        finally:
            part.unlink(missing_ok=True)


class _ThisPython(AsyncKernelManager):
    """Kernels of the Python that runs; the one that Jupyter finds under the name python3 may be another."""

    kernel_spec = KernelSpec(**get_kernel_dict())


def _run(chapter: NotebookNode, values: Mapping[str, object]) -> list[NotebookNode]:
    try:
        done = papermill.execute_notebook(
            chapter,
            None,
            values,
            kernel_manager_class=_ThisPython,
            extra_arguments=KERNEL_OPTIONS,
            shutdown_kernel="immediate",
            stderr_file=sys.stderr,
        )
    except PapermillExecutionError as error:
        where = _section(chapter, error.source)
        raise RuntimeError(f"report: chapter 7 stopped in “{where}”. {error.ename}: {error.evalue}") from error
    except DeadKernelError as error:
        raise RuntimeError("report: the process of chapter 7 died, most often for want of memory") from error
    return done.cells


def _section(chapter: NotebookNode, source: str) -> str:
    """The heading above the cell with that source."""
    place = [cell.source for cell in chapter.cells].index(source)
    text = "\n".join(cell.source for cell in chapter.cells[:place] if cell.cell_type == "markdown")
    return re.findall(r"^#+ (.+)$", text, re.M)[-1]


def _head(values: Mapping[str, object], meanings: Mapping[str, str]) -> str:
    versions = {name: metadata.version(name) for name in ("normgeom", "torch", "transformers")}
    versions["python"] = platform.python_version()
    rows = [(name, value, meanings[name]) for name, value in values.items()]
    rows += [(name, version, "") for name, version in versions.items()]
    return HEAD.format(
        model=escape(_short(values["model"])),
        corpus=escape(_short(values["corpus"])),
        tokens=values["tokens"],
        when=datetime.now(UTC),
        rows="\n".join(ROW.format(*(escape(str(entry)) for entry in row)) for row in rows),
    )


def _short(name_or_path: str) -> str:
    """The last part of a path that is there; a name stays as it is."""
    path = Path(name_or_path)
    return path.resolve().name if path.exists() else name_or_path
