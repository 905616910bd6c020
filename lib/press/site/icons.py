"""The theme brings two thousand icons in a megabyte and a half of script; pages load those that the book shows."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

SCRIPT = "_static/scripts/fontawesome.js"
SHOWN = re.compile(r"\bfa-([a-z0-9-]+)")
# A name, then width, height, other names, code and outline.
ICON = re.compile(r'(?:"([a-z0-9-]+)"|\b([a-z][a-z0-9]*)):\[\d+,\d+,\[([^\]]*)\],"[0-9a-f]+","[^"]*"\],?')


def keep_shown(app: Sphinx, error: Exception | None) -> None:
    """Leave out of the theme's script every icon that no page and no other script names."""
    script = Path(app.outdir, SCRIPT)
    if error or not script.is_file():
        return
    others = [path for path in Path(app.outdir).rglob("*") if path.suffix in (".html", ".js") and path != script]
    shown = {name for path in others for name in SHOWN.findall(path.read_text("utf-8"))}
    script.write_text(
        ICON.sub(lambda icon: icon[0] if shown & _names(icon) else "", script.read_text("utf-8")), "utf-8"
    )


def _names(icon: re.Match) -> set[str]:
    return {icon[1] or icon[2], *re.findall(r'"([a-z0-9-]+)"', icon[3])}


def setup(app: Sphinx) -> None:
    app.connect("build-finished", keep_shown)
