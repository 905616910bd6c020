"""Sliders: each position shows its frame, with its words."""

import importlib
import itertools
import re

import matplotlib.pyplot as plt
import normgeom as ng
import pytest

module = importlib.import_module("normgeom.view.explore")
IMAGE = re.compile(r'<img src="data:image/svg\+xml,[^"]+" alt="([^"]*)">')
LATER = ' hidden loading="lazy"'
HEIGHTS, COLORS = [1.0, 2.0, 3.0], ["red", "blue"]


def bar(height, color="red"):
    figure, axis = plt.subplots(figsize=(2, 1))
    axis.bar([0], [height], color=color)
    axis.set_ylim(0, 3)
    return figure, f"a {color} bar <of> height {height:g}"


@pytest.fixture
def shown(monkeypatch):
    """What explore displays: the list of bundles."""
    bundles = []
    monkeypatch.setattr(module, "display", lambda bundle, raw: raw and bundles.append(bundle))
    return bundles


def test_the_frames_are_those_of_the_positions(shown):
    ng.explore(bar, height=HEIGHTS, color=COLORS)
    bundle = shown[0]
    assert bundle["text/plain"] == "A figure with sliders for height, color."
    page = bundle["text/html"]
    assert [match[1] for match in IMAGE.finditer(page)] == ["a blue bar &lt;of&gt; height 2"], "the middle is drawn"
    assert page.count('type="range"') == 2 and page.count(LATER) == 5, "the others are drawn when they are asked for"
    frames = list(IMAGE.finditer(page.replace(LATER, "")))
    assert [frame[1] for frame in frames] == [f"a {c} bar &lt;of&gt; height {h:g}" for h in HEIGHTS for c in COLORS]
    assert not plt.get_fignums(), "figures must be closed"


TURNED = """positions => {
    const sliders = [...document.querySelectorAll("[type=range]")];
    sliders.forEach((slider, i) => { slider.value = positions[i]; slider.dispatchEvent(new Event("input")); });
    const seen = [...document.querySelectorAll("img")].filter(frame => !frame.hidden).map(frame => frame.alt);
    return [seen, sliders.map(slider => slider.nextElementSibling.textContent)];
}"""


def test_sliders_of_different_lengths_choose_their_frame_in_a_browser(shown, browser):
    """At every position; with three, so that no step of the index can stand for another."""
    values = dict(height=HEIGHTS, color=COLORS, edge=["a", "b", "c", "d"])
    ng.explore(lambda height, color, edge: (bar(height, color)[0], f"{height:g} {color} {edge}"), **values)
    page = browser.new_page()
    page.set_content(shown[0]["text/html"])
    for at in itertools.product(*(range(len(positions)) for positions in values.values())):
        words = [str(positions[i]).removesuffix(".0") for positions, i in zip(values.values(), at, strict=True)]
        assert page.evaluate(TURNED, list(at)) == [[" ".join(words)], words], f"another frame at {at}"
    page.close()


def test_labels_are_signs_and_words(shown):
    ng.explore(lambda sigma_over_root_eps, third_gain: bar(1.0, "red"), sigma_over_root_eps=[1], third_gain=[2])
    assert re.findall(r"<span>(.*?)</span>", shown[0]["text/html"]) == ["σ / √ε", "third gain"]


SHOWN = {
    "the button": "page => page.querySelector('button').click()",
    "a slider": "page => page.querySelector('[type=range]').dispatchEvent(new Event('input'))",
    "paper": "() => dispatchEvent(new Event('beforeprint'))",
}


@pytest.mark.parametrize("how", SHOWN)
def test_a_question_takes_a_guess_and_hides_its_answer(shown, browser, how):
    ng.explore(bar, "Will it be <higher>?", height=HEIGHTS)
    html = shown[0]["text/html"]
    assert html.index("Guess first. Will it be &lt;higher&gt;?") < html.index("Your guess") < html.index('"range"')
    page = browser.new_page()
    page.set_content(html)
    page.get_by_label("Your guess").fill("3")
    assert not page.locator("img:visible").count(), "the answer is shown before the guess"
    page.locator("body").evaluate(SHOWN[how])
    assert page.locator("img:visible").count() == 1 and not page.locator("button").count()
    assert page.get_by_label("Your guess").input_value() == "3", "the guess is not kept"
    page.close()


def test_without_a_question_the_figure_is_seen(shown, browser):
    ng.explore(bar, height=HEIGHTS)
    page = browser.new_page()
    page.set_content(shown[0]["text/html"])
    assert page.locator("img:visible").count() == 1 and not page.locator("button, .live-question").count()
    page.close()


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
