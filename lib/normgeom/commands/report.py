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
from importlib import metadata
from pathlib import Path

try:
    import nbformat
    import papermill
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient.exceptions import DeadKernelError
    from nbconvert import HTMLExporter
    from nbformat import NotebookNode
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    from normgeom.commands.finding import find_commit
    from normgeom.jobs.folders import held, whole, writing

    # Of MathJax's bundles, the one with every extension and all glyphs inside: the others fetch what a formula needs.
    BUNDLE = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"
    MATHJAX = Path(metadata.distribution("sphinx-mathjax-offline").locate_file(BUNDLE))
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
UNSEEN = {"setup", "parameters", "injected-parameters"}
# nbconvert's page, with a heading above the notebook, folded code, no standard error, and alt texts of the pictures.
# The page carries the MathJax that sets its formulas, without the commands that make links; its policy forbids the
# browser to load anything.
TEMPLATE = """{% extends 'lab/index.html.j2' %}
{% block html_head_js_requirejs %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block html_head_js_mathjax %}
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>
body { max-width: 50rem; margin: 0 auto; }
.jp-Notebook pre { white-space: pre-wrap; }
img { max-width: 100%; }
mjx-container { overflow-x: auto; overflow-y: hidden; }
</style>
<script>
window.MathJax = {options: {enableMenu: false}, tex: {inlineMath: [['$', '$']], packages: {'[-]': ['html']}}};
</script>
<script>{{ resources.mathjax }}</script>
{% endblock %}
{% block body_header %}{{ super() }}
<header class="jp-RenderedHTMLCommon mathjax_ignore">
<p>Norm report</p>
<h1>{{ resources.model | e }}</h1>
<p>Measured on the corpus {{ resources.corpus | e }}, {{ "{:,}".format(resources.tokens) }} tokens asked for;
written {{ resources.written }} UTC.</p>
<p>This is chapter 7 of <cite>The Geometry of Layer Normalization</cite>, run on this model. The text is the book's and
describes the small models that the chapter trains. What the cells print and draw comes from this run, except where
they show a recorded measurement and say so. The numbers of chapters, statements and figures are the book's.</p>
<details>
<summary>Parameters and versions</summary>
<table>
{% for row in resources.rows %}<tr>{% for entry in row %}<td>{{ entry | e }}</td>{% endfor %}</tr>
{% endfor %}</table>
</details>
</header>
{% endblock %}
{% block input %}<details><summary>Code</summary>{{ super() }}</details>{% endblock %}
{% block stream_stderr %}{% endblock %}
{% block data_svg %}
<img alt="{{ output.metadata.alt | e }}"
 src="data:image/svg+xml;base64,{{ output.data['image/svg+xml'] | text_base64 }}">
{% endblock %}
"""


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
        done = _run(chapter, values)
        meanings = {name: parameter["help"] for name, parameter in known.items()}
        part.write_text(_page(done, values, meanings), encoding="utf-8")
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
    """A file that replaces ``out`` when the block ends well; taking the lock first shows that it can be written."""
    if out.suffix != ".html" or out.is_dir():
        raise ValueError(f"out: expected the name of a file that ends in .html, got {str(out)!r}")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"out: there is no folder {str(out.parent)!r}")
    with held(out, out.with_name(f".{out.name}.lock")), writing(out), whole(out) as part:
        yield part


class _ThisPython(AsyncKernelManager):
    """Kernels of the Python that runs; the one that Jupyter finds under the name python3 may be another."""

    kernel_spec = KernelSpec(**get_kernel_dict())


def _run(chapter: NotebookNode, values: Mapping[str, object]) -> NotebookNode:
    try:
        return papermill.execute_notebook(
            chapter,
            None,
            values,
            kernel_manager_class=_ThisPython,
            extra_arguments=KERNEL_OPTIONS,
            shutdown_kernel="immediate",
            store_widget_state=False,
            stderr_file=sys.stderr,
        )
    except PapermillExecutionError as error:
        where = _section(chapter, error.source)
        raise RuntimeError(f"report: chapter 7 stopped in “{where}”. {error.ename}: {error.evalue}") from error
    except DeadKernelError as error:
        raise RuntimeError("report: the process of chapter 7 died, most often for want of memory") from error


def _section(chapter: NotebookNode, source: str) -> str:
    """The heading above the cell with that source."""
    place = [cell.source for cell in chapter.cells].index(source)
    text = "\n".join(cell.source for cell in chapter.cells[:place] if cell.cell_type == "markdown")
    return re.findall(r"^#+ (.+)$", text, re.M)[-1]


def _page(notebook: NotebookNode, values: Mapping[str, object], meanings: Mapping[str, str]) -> str:
    """An executed chapter as one page of HTML that needs no other file and no network."""
    versions = {name: metadata.version(name) for name in ("normgeom", "torch", "transformers")}
    versions["python"] = platform.python_version()
    head = {
        "model": _short(values["model"]),
        "corpus": _short(values["corpus"]),
        "tokens": values["tokens"],
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "rows": [(name, value, meanings.get(name, "")) for name, value in {**values, **versions}.items()],
    }
    notebook.metadata["title"] = f"Norm report: {head['model']}"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":  # a link to another file of the book leads nowhere: its words stay
            cell.source = re.sub(r"\[([^\]]*)\]\((?!http|#)[^)]*\)", r"\1", cell.source)
    exporter = HTMLExporter(
        raw_template=TEMPLATE,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        config=Config(TagRemovePreprocessor={"remove_cell_tags": UNSEEN}),
    )
    html, _ = exporter.from_notebook_node(notebook, head | {"mathjax": MATHJAX.read_text("utf-8")})
    return html


def _short(name_or_path: str) -> str:
    """The last part of a path that is there; a name stays as it is."""
    path = Path(name_or_path)
    return path.resolve().name if path.exists() else name_or_path
