"""Figures with sliders: HTML with its own script, in a notebook and on a page."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from html import escape

from IPython.display import display
from matplotlib.figure import Figure

from normgeom.view.style import data_uri, svg

MOST_FRAMES = 80
_SIGNS = {"eps": "ε", "sigma": "σ", "gamma": "γ", "over": "/", "root": "√"}
_ASK = (
    '<p class="live-question">Guess first. {}<br>'
    '<label>Your guess <input style="font: inherit; width: 9em; max-width: 100%"></label></p>'
)
_PAGE = """<div class="explore" id="{id}">
{ask}{sliders}
<div class="explore-frames">{frames}</div>
</div>
<script>(() => {{
  const root = document.getElementById("{id}"), labels = {labels};
  const sliders = [...root.querySelectorAll("[type=range]")], frames = [...root.querySelectorAll("img")];
  const turn = () => {{
    let chosen = 0;
    sliders.forEach((slider, i) => {{
      chosen = chosen * labels[i].length + Number(slider.value);
      slider.nextElementSibling.textContent = labels[i][slider.value];
      slider.setAttribute("aria-valuetext", labels[i][slider.value]);
    }});
    frames.forEach((frame, i) => {{ frame.hidden = i !== chosen; }});
  }};
  turn();
  const ask = root.querySelector(".live-question"), picture = root.querySelector(".explore-frames");
  const button = Object.assign(document.createElement("button"), {{ type: "button", textContent: "Show" }});
  const hide = hidden => {{
    frames.forEach(frame => {{ frame.style.visibility = hidden ? "hidden" : ""; }});
    picture.style.outline = hidden ? "1px dashed" : "";
    hidden ? ask.append(" ", button) : button.remove();
  }};
  const show = () => hide(false);
  if (ask) hide(true);
  button.addEventListener("click", show);
  addEventListener("beforeprint", show);
  sliders.forEach(slider => slider.addEventListener("input", () => {{ show(); turn(); }}));
}})();</script>"""
_SLIDER = (
    '<label class="explore-slider"><span>{name}</span> '
    '<input type="range" min="0" max="{last}" step="1" value="{start}"> <output></output></label>'
)


def explore(draw: Callable[..., tuple[Figure, str]], ask: str = "", **values: Sequence) -> None:
    """Show what ``draw`` draws, with one slider for each of its arguments.

    All frames are drawn at once, so that the sliders also move without a kernel.  They start in the middle.

    Args:
        draw: takes one value by name for each slider and returns a matplotlib figure, which is closed, and alt text.
        ask: a question above the sliders, about what will happen when they move, with a field for a guess; the figure
            is hidden until the reader asks for it or moves a slider.
        values: the positions of each slider, in order; an underscore in a name is shown as a space, and
            eps, sigma, gamma, over and root as ε, σ, γ, / and √.

    Raises:
        ValueError: no values, a slider without positions, more than 80 frames in all, or an empty alt text.
        TypeError: ``draw`` does not return a figure and a text.

    Example:
        >>> import matplotlib.pyplot as plt, normgeom as ng
        >>> def line(slope):
        ...     figure, axes = plt.subplots()
        ...     axes.axline((0, 0), slope=slope)
        ...     return figure, f"A line of slope {slope}."
        >>> ng.explore(line, slope=[0, 1, 2])  # doctest: +ELLIPSIS
        {... 'text/plain': 'A figure with sliders for slope.'}
    """
    chosen = [dict(zip(values, at, strict=True)) for at in itertools.product(*values.values())]
    if not values or not chosen:
        raise ValueError(f"values: expected at least one slider with at least one position, got {values}")
    if len(chosen) > MOST_FRAMES:
        raise ValueError(f"values: expected at most {MOST_FRAMES} frames in all, got {len(chosen)}")
    ask = ask and _ASK.format(escape(ask))
    page = _page(values, [_image(draw, frame) for frame in chosen], ask)
    words = f"A figure with sliders for {', '.join(map(_name, values))}."
    display({"text/html": page, "text/plain": words}, raw=True)


def image(figure: Figure, alt: str) -> str:
    """A figure as an HTML image with its alt text; the figure is closed."""
    return f'<img src="{data_uri(svg(figure))}" alt="{escape(alt)}">'


def _image(draw: Callable[..., tuple[Figure, str]], chosen: dict) -> str:
    drawn = draw(**chosen)
    if not (isinstance(drawn, tuple) and len(drawn) == 2 and isinstance(drawn[0], Figure)):
        raise TypeError(f"draw: expected a figure and its alt text, got {type(drawn).__name__}")
    figure, alt = drawn
    if not alt.strip():
        raise ValueError(f"draw: expected alt text that says what the figure shows, got an empty text for {chosen}")
    return image(figure, alt)


def _page(values: dict[str, Sequence], images: list[str], ask: str) -> str:
    labels = [list(map(_label, positions)) for positions in values.values()]
    starts = [len(own) // 2 for own in labels]
    sliders = [
        _SLIDER.format(name=escape(_name(name)), last=len(own) - 1, start=start)
        for name, own, start in zip(values, labels, starts, strict=True)
    ]
    shown = list(itertools.product(*(range(len(own)) for own in labels))).index(tuple(starts))
    # the other frames are rendered when they are first shown: twenty of them would delay the page by half a second
    frames = [frame.replace("<img ", '<img hidden loading="lazy" ', 1) for frame in images]
    frames[shown] = images[shown]
    return _PAGE.format(
        id=f"explore-{hashlib.sha256(''.join(images).encode()).hexdigest()[:12]}",
        ask=ask,
        sliders="\n".join(sliders),
        frames="".join(frames),
        labels=json.dumps(labels, ensure_ascii=False).replace("<", "\\u003c"),
    )


def _name(name: str) -> str:
    return " ".join(_SIGNS.get(word, word) for word in name.split("_")).replace("√ ", "√")


def _label(value: object) -> str:
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)
