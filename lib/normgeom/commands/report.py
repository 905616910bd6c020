"""The norm report of a model: chapter 7 rerun on it, as one page that can be kept, sent and printed."""

from __future__ import annotations

import ast
import os
import re
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError
from nbconvert import HTMLExporter
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from normgeom.commands.loading import load_config
from normgeom.commands.train import TWINS
from normgeom.jobs import atomic_path, now, versions

CHAPTER = Path(__file__).parents[1] / "notebooks/07-inference.ipynb"  # lib/normgeom/notebooks is a link to notebooks/
# Of MathJax's bundles, the one with every extension and all glyphs inside: the others fetch what a formula needs.
MATHJAX = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"
# Progress bars as text: standard error is shown while a cell runs, widgets are not.
KERNEL = [
    "--IPKernelApp.log_level=40",
    "--IPKernelApp.exec_lines=import tqdm.auto; tqdm.auto.tqdm = tqdm.std.tqdm",
]
UNSEEN = {"setup", "parameters", "injected-parameters"}
SLIDERS = "application/vnd.jupyter.widget-view+json"
# nbconvert's page with MathJax inside, which is without its menu and its commands that make links; a heading; no
# standard error; alt texts; and no script but MathJax and those of sliders, whatever a model's names hold.
TEMPLATE = """{% extends 'lab/index.html.j2' %}
{% block html_head %}
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none'; form-action 'none';
 img-src data:; font-src data:; style-src 'unsafe-inline'; script-src 'nonce-{{ resources.nonce }}'">
{{ super() }}
{% endblock %}
{% block html_head_js_requirejs %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block html_head_js_mathjax %}
<style>
body { max-width: 50rem; margin: 0 auto; }
.jp-Notebook pre { white-space: pre-wrap; }
img { max-width: 100%; }
mjx-container { overflow-x: auto; overflow-y: hidden; }
</style>
<script nonce="{{ resources.nonce }}">
window.MathJax = {options: {enableMenu: false}, tex: {inlineMath: [['$', '$']], packages: {'[-]': ['html']}}};
</script>
<script nonce="{{ resources.nonce }}">{{ resources.mathjax }}</script>
{% endblock %}
{% block body_header %}{{ super() }}
<header class="jp-RenderedHTMLCommon mathjax_ignore">
<h1>{{ nb.metadata.title | e }}</h1>
<p>This is chapter 7 of <cite>The Geometry of Layer Normalization</cite>, run on this model. The text is the book's and
describes the small models that the chapter trains; what the cells print and draw comes from this run.</p>
<table>
{% for row in resources.rows %}<tr>{% for entry in row %}<td>{{ entry | e }}</td>{% endfor %}</tr>
{% endfor %}</table>
</header>
{% endblock %}
{% block stream_stderr %}{% endblock %}
{% block data_svg %}
<img alt="{{ output.metadata.alt | e }}"
 src="data:image/svg+xml;base64,{{ output.data['image/svg+xml'] | text_base64 }}">
{% endblock %}
"""


def write_report(model: str, out: str | os.PathLike, parameters: Mapping[str, str], progress: bool = True) -> Path:
    """Run chapter 7 on a model and write what it shows as one page of HTML; warnings and progress go to standard error.

    Args:
        model: a transformers model, by name or folder; a folder of ``normgeom train``; or ``"twins"``, small pairs that
            the chapter trains, where no folder has that name.
        out: path of the page, ending in ``.html``.
        parameters: the chapter's other parameters by name, as text.

    Raises:
        ValueError: ``out`` cannot be written or does not end in ``.html``, or the chapter has no such parameter.
        OSError: the model is neither a folder of one nor on the hub, a cell of the chapter failed, or the page cannot
            be written; then the message says where what the cells showed is kept.

    Whatever is raised, what stood at ``out`` is as it was.
    """
    out, chapter = Path(out), nbformat.read(CHAPTER, as_version=4)
    if out.suffix != ".html" or out.is_dir() or not os.access(out.parent, os.W_OK):
        raise ValueError(f"out: expected a file that ends in .html, in a folder to write to, got {str(out)!r}")
    values = {name: ast.literal_eval(of["default"]) for name, of in papermill.inspect_notebook(chapter).items()}
    if unknown := parameters.keys() - (values.keys() - {"model"}):
        raise ValueError(f"parameters: expected names out of {sorted(values)} but model, got {sorted(unknown)}")
    for name, text in parameters.items():
        is_text, values[name] = isinstance(values[name], str), text
        with suppress(ValueError, SyntaxError):  # the chapter's first cell says what it expected
            values[name] = text if is_text else ast.literal_eval(text)
    folder = Path(model)
    values["model"] = f"./{model}" if model == "twins" and folder.is_dir() else model
    pair = [str(folder / norm / "model") for norm in TWINS]
    for place in pair if all(map(os.path.isdir, pair)) else [model]:
        if place != "twins" or folder.is_dir():
            load_config(place)
    how = dict(kernel_name="python3", extra_arguments=KERNEL, store_widget_state=False, progress_bar=progress)
    if progress:
        how["stderr_file"] = sys.stderr
    try:
        done = papermill.execute_notebook(chapter, None, values, **how)
    except (PapermillExecutionError, DeadKernelError) as error:
        raise ChildProcessError(f"report: chapter 7 failed ({getattr(error, 'evalue', error)})") from error
    try:
        with atomic_path(out) as part:
            part.write_text(_page(done, values), encoding="utf-8")
    except OSError as error:
        with NamedTemporaryFile("w", prefix="normgeom-", suffix=".ipynb", delete=False, encoding="utf-8") as kept:
            nbformat.write(done, kept)
        raise OSError(f"out: {out} cannot be written ({error}); the notebook that was run is {kept.name}") from error
    return out


def _page(notebook: nbformat.NotebookNode, values: Mapping[str, object]) -> str:
    """An executed chapter as one page of HTML that needs no other file and no network."""
    model = Path(values["model"])
    notebook.metadata["title"] = f"Norm report: {model.resolve().name if model.exists() else model}"
    nonce = secrets.token_urlsafe(16)
    for cell in notebook.cells:
        for shown in (output.data for output in cell.get("outputs", ()) if SLIDERS in output.get("data", {})):
            shown["text/html"] = shown["text/html"].replace("<script>", f'<script nonce="{nonce}">')
        if cell.cell_type == "markdown":  # a link to another file of the book leads nowhere: its words stay
            cell.source = re.sub(r"\[([^\]]*)\]\((?!http|#)[^)]*\)", r"\1", cell.source)
    unseen = Config(TagRemovePreprocessor={"remove_cell_tags": UNSEEN})
    exporter = HTMLExporter(raw_template=TEMPLATE, exclude_input=True, exclude_output_prompt=True, config=unseen)
    mathjax = metadata.distribution("sphinx-mathjax-offline").locate_file(MATHJAX).read_text("utf-8")
    rows = [*values.items(), *versions().items(), ("written, UTC", now())]
    return exporter.from_notebook_node(notebook, dict(rows=rows, mathjax=mathjax, nonce=nonce))[0]
