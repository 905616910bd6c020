"""One output in two forms: widgets where a kernel runs, and HTML that a page makes alive by a script of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

import ipywidgets
from IPython.display import display
from matplotlib.figure import Figure

from normgeom.view.style import data_uri, svg

_WIDGET = "application/vnd.jupyter.widget-view+json"


def show_live(view: ipywidgets.Widget, page: str, words: str) -> None:
    """Display ``view`` where a kernel runs, else ``page``, HTML; ``words`` stand where there is neither."""
    model = {"version_major": 2, "version_minor": 0, "model_id": view.model_id}
    display({_WIDGET: model, "text/html": page, "text/plain": words}, raw=True)


def image(figure: Figure, alt: str) -> str:
    """A figure as an HTML image with its alt text; the figure is closed."""
    return f'<img src="{data_uri(svg(figure))}" alt="{escape(alt)}">'


def under_controls(controls: Mapping[str, ipywidgets.Widget], draw: Callable[..., str]) -> ipywidgets.VBox:
    """Controls over the HTML that ``draw`` makes of their values, drawn anew whenever one of them changes."""
    picture = ipywidgets.HTML()

    def turn(_change=None):
        picture.value = draw(**{name: control.value for name, control in controls.items()})

    for control in controls.values():
        control.observe(turn, names="value")
    turn()
    return ipywidgets.VBox([*controls.values(), picture])
