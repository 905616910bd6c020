"""The pages' engine: Sphinx by its own command, told by the book's two files in the form of Jupyter Book 1.

``_toc.yml`` is read by sphinx-external-toc, ``_config.yml`` here.  The stage's ``conf.py`` calls :func:`configuration`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml
from sphinx.cmd.build import main

CONF = """from pathlib import Path

from press.engine import configuration

globals().update(configuration(Path(__file__).parent))
"""
# What the keys of _config.yml that the book may set are called by Sphinx and its extensions.
NAMES = {
    "title": "html_title",
    "author": "author",
    "copyright": "copyright",
    "only_build_toc_files": "external_toc_exclude_missing",
    "bibtex_bibfiles": "bibtex_bibfiles",
    "execute.execute_notebooks": "nb_execution_mode",
    "execute.stderr_output": "nb_output_stderr",
    "html.use_multitoc_numbering": "use_multitoc_numbering",
    "parse.myst_enable_extensions": "myst_enable_extensions",
}
OWN = "sphinx.config"  # in Sphinx's words already


def configuration(stage: Path) -> dict:
    """What a ``conf.py`` says, out of ``_config.yml``.

    Raises:
        ValueError: a key that is not in ``NAMES``.
    """
    said = _flat(yaml.safe_load((stage / "_config.yml").read_text("utf-8")))
    own = said.pop(OWN, {})
    if unknown := sorted(said.keys() - NAMES):
        raise ValueError(f"_config.yml: expected {OWN} or any of {', '.join(NAMES)}, got {', '.join(unknown)}")
    return {NAMES[key]: value for key, value in said.items()} | own


def _flat(said: dict) -> dict:
    """``execute: {timeout: 30}`` as ``execute.timeout``; what stands deeper stays a value."""
    flat = {}
    for key, value in said.items():
        flat |= {f"{key}.{name}": of for name, of in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def pages(stage: Path, html: Path) -> bool:
    """Build ``html`` from ``stage``, every warning an error; say whether it went well."""
    doctrees = html.with_name(".doctrees")
    every = ["--write-all"] if _dressed_anew(stage, html / "index.html") else []
    strict = ["--nitpicky", "--fail-on-warning", "--keep-going"]
    if main(["--quiet", *strict, *every, "--doctree-dir", str(doctrees), str(stage), str(html)]) != 0:
        # Sphinx tells a warning once; without its cache it tells it again the next time.
        shutil.rmtree(doctrees, ignore_errors=True)
        return False
    (html / "index.html").touch()
    return True


def _dressed_anew(stage: Path, built: Path) -> bool:
    """Whether style or code changed since the last build: Sphinx would write only pages whose text did."""
    dress = (*stage.glob("_static/**/*"), *stage.glob("_live/*"), *Path(__file__).parent.rglob("*.py"))
    return built.exists() and any(path.stat().st_mtime > built.stat().st_mtime for path in dress)
