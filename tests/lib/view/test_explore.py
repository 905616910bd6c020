"""Sliders: the frames of the page and the live view show the same pictures, each with its words."""

import importlib
import itertools
import re

import matplotlib.pyplot as plt
import normgeom as ng
import pytest

module = importlib.import_module("normgeom.view.explore")
IMAGE = re.compile(r'<img src="data:image/svg\+xml,[^"]+" alt="([^"]*)">')
LATER = ' hidden loading="lazy"'


def bar(height, color="red"):
    figure, axis = plt.subplots(figsize=(2, 1))
    axis.bar([0], [height], color=color)
    axis.set_ylim(0, 3)
    return figure, f"a {color} bar <of> height {height:g}"


@pytest.fixture
def shown(monkeypatch):
    """What explore displays: the list of bundles."""
    bundles = []
    monkeypatch.setattr("normgeom.view.live.display", lambda bundle, raw: bundles.append(bundle))
    return bundles


def test_every_frame_is_there_with_its_words(shown):
    ng.explore(bar, height=[1.0, 2.0, 3.0], color=["red", "blue"])
    alts = [match[1] for match in IMAGE.finditer(shown[0]["text/html"].replace(LATER, ""))]
    assert alts == [f"a {c} bar &lt;of&gt; height {h}" for h in (1, 2, 3) for c in ("red", "blue")]
    assert shown[0]["text/html"].count('type="range"') == 2
    assert not plt.get_fignums(), "figures must be closed"


def test_the_live_view_shows_the_frame_of_the_page(shown):
    heights, colors = [1.0, 2.0, 3.0], ["red", "blue"]
    ng.explore(bar, height=heights, color=colors)
    frames = [match[0] for match in IMAGE.finditer(shown[0]["text/html"].replace(LATER, ""))]
    view = module._live(bar, dict(height=heights, color=colors))
    *sliders, picture = view.children
    assert picture.value == frames[1 * 2 + 1], "both start in the middle"
    for i in range(3):
        for j in range(2):
            sliders[0].value, sliders[1].value = i, j
            assert picture.value == frames[2 * i + j]


def test_the_frame_in_the_middle_alone_is_drawn_at_first(shown):
    """Also where no script runs; the others are drawn when they are asked for."""
    ng.explore(bar, height=[1.0, 2.0, 3.0], color=["red", "blue"])
    page = shown[0]["text/html"]
    assert [match[1] for match in IMAGE.finditer(page)] == ["a blue bar &lt;of&gt; height 2"]
    assert page.count(LATER) == 5


TURNED = """positions => {
    const sliders = [...document.querySelectorAll("input")];
    sliders.forEach((slider, i) => { slider.value = positions[i]; slider.dispatchEvent(new Event("input")); });
    const seen = [...document.querySelectorAll("img")].filter(frame => !frame.hidden).map(frame => frame.alt);
    return [seen, sliders.map(slider => slider.nextElementSibling.textContent)];
}"""


def test_sliders_of_different_lengths_choose_their_frame_in_a_browser(shown, browser):
    """At every position; with three, so that no step of the index can stand for another."""
    values = dict(height=[1.0, 2.0, 3.0], color=["red", "blue"], edge=["a", "b", "c", "d"])
    ng.explore(lambda height, color, edge: (bar(height, color)[0], f"{height:g} {color} {edge}"), **values)
    page = browser.new_page()
    page.set_content(shown[0]["text/html"])
    for at in itertools.product(*(range(len(positions)) for positions in values.values())):
        words = [str(positions[i]).removesuffix(".0") for positions, i in zip(values.values(), at, strict=True)]
        assert page.evaluate(TURNED, list(at)) == [[" ".join(words)], words], f"another frame at {at}"
    page.close()


def test_the_output_carries_a_widget_and_words(shown):
    ng.explore(bar, height=[1.0])
    view = shown[0]["application/vnd.jupyter.widget-view+json"]
    assert set(view) == {"version_major", "version_minor", "model_id"}
    assert shown[0]["text/plain"] == "A figure with sliders for height."


def test_labels_are_signs_and_words(shown):
    ng.explore(lambda sigma_over_root_eps, third_gain: bar(1.0, "red"), sigma_over_root_eps=[1], third_gain=[2])
    names = re.findall(r"<span>(.*?)</span>", shown[0]["text/html"])
    assert names == ["σ / √ε", "third gain"]


@pytest.mark.parametrize(
    ("draw", "values", "error", "message"),
    [
        (bar, {}, ValueError, "values: expected at least one slider"),
        (bar, {"height": []}, ValueError, "values: expected at least one slider"),
        (bar, {"height": range(81)}, ValueError, "at most 80 frames in all, got 81"),
        (lambda height: None, {"height": [1]}, TypeError, "draw: expected a figure and its alt text, got NoneType"),
        (lambda height: (bar(height)[0], " "), {"height": [1]}, ValueError, "draw: expected alt text"),
    ],
)
def test_bad_input(shown, draw, values, error, message):
    with pytest.raises(error, match=message):
        ng.explore(draw, **values)
    assert not shown
    plt.close("all")
