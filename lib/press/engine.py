"""Build the pages with Sphinx's own command, configured by the book's two files in the format of Jupyter Book 1.

sphinx-external-toc reads ``_toc.yml``.  The stage's ``conf.py`` calls :func:`configuration` to read ``_config.yml``.
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
# The keys that _config.yml may have, and their names in Sphinx and its extensions.
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
OWN = "sphinx.config"  # its keys are Sphinx's own names


def configuration(stage: Path) -> dict:
    """Return the settings of a ``conf.py``, read from ``_config.yml``.

    Raises:
        ValueError: a key is neither ``OWN`` nor in ``NAMES``.
    """
    said = _flat(yaml.safe_load((stage / "_config.yml").read_text("utf-8")))
    own = said.pop(OWN, {})
    if unknown := sorted(said.keys() - NAMES):
        raise ValueError(f"_config.yml: expected {OWN} or any of {', '.join(NAMES)}, got {', '.join(unknown)}")
    return {NAMES[key]: value for key, value in said.items()} | own


def _flat(said: dict) -> dict:
    """Flatten one level: ``execute: {timeout: 30}`` becomes ``execute.timeout``; deeper mappings stay values."""
    flat = {}
    for key, value in said.items():
        flat |= {f"{key}.{name}": of for name, of in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def pages(stage: Path, html: Path) -> bool:
    """Build ``html`` from ``stage`` with warnings as errors, and return whether the build succeeded."""
    doctrees = html.with_name(".doctrees")
    every = ["--write-all"] if _dressed_anew(stage, html / "index.html") else []
    strict = ["--nitpicky", "--fail-on-warning", "--keep-going"]
    if main(["--quiet", *strict, *every, "--doctree-dir", str(doctrees), str(stage), str(html)]) != 0:
        # Sphinx reports a warning only once; without its cache it reports it again in the next build.
        shutil.rmtree(doctrees, ignore_errors=True)
        return False
    (html / "index.html").touch()
    return True


def _dressed_anew(stage: Path, built: Path) -> bool:
    """Whether styles or code changed since the last build; by itself, Sphinx rewrites only pages whose text changed."""
    dress = (*stage.glob("_static/**/*"), *stage.glob("_live/*"), *Path(__file__).parent.rglob("*.py"))
    return built.exists() and any(path.stat().st_mtime > built.stat().st_mtime for path in dress)
