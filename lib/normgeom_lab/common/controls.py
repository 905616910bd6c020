"""Controls of Jupyter over a picture that Python draws again, and what a page shows in their place."""

from collections.abc import Callable, Mapping

import ipywidgets
from IPython.display import display


def show_live(view: ipywidgets.Widget, page: str, words: str) -> None:
    """Display ``view`` if a kernel is running, else the HTML ``page``; ``words`` is shown where neither is possible."""
    model = {"version_major": 2, "version_minor": 0, "model_id": view.model_id}
    display({"application/vnd.jupyter.widget-view+json": model, "text/html": page, "text/plain": words}, raw=True)


def under_controls(controls: Mapping[str, ipywidgets.Widget], draw: Callable[..., str]) -> ipywidgets.VBox:
    """Controls above the HTML that ``draw`` makes from their values, which is updated whenever one of them changes."""
    picture = ipywidgets.HTML()

    def turn(_change=None):
        picture.value = draw(**{name: control.value for name, control in controls.items()})

    for control in controls.values():
        control.observe(turn, names="value")
    turn()
    return ipywidgets.VBox([*controls.values(), picture])
