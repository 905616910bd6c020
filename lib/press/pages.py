"""Jupyter Book's build of the staged pages."""

from __future__ import annotations

import shutil
from pathlib import Path

from jupyter_book.sphinx import build_sphinx


def pages(stage: Path, html: Path) -> bool:
    """Build ``html`` from ``stage``, every warning an error; say whether it went well."""
    overrides = {
        "external_toc_path": str(stage.absolute() / "_toc.yml"),
        "latex_individualpages": False,
        "nitpicky": True,
    }
    # Jupyter Book's own command answers a warning with two tracebacks.
    status = build_sphinx(
        stage.absolute(),
        html.absolute(),
        noconfig=True,
        path_config=stage / "_config.yml",
        confoverrides=overrides,
        force_all=_dressed_anew(stage, html / "index.html"),
        warningiserror=True,
        keep_going=True,
        quiet=True,
    )
    if status != 0:
        # Sphinx tells a warning once; without its cache it tells it again the next time.
        shutil.rmtree(html.with_name(".doctrees"), ignore_errors=True)
        return False
    (html / "index.html").touch()
    return True


def _dressed_anew(stage: Path, built: Path) -> bool:
    """Whether style or code changed since the last build: Sphinx would write only pages whose text did."""
    dress = (*stage.glob("_static/**/*"), *stage.glob("_live/*"), *Path(__file__).parent.rglob("*.py"))
    return built.exists() and any(path.stat().st_mtime > built.stat().st_mtime for path in dress)
