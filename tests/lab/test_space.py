"""Pictures in space: where points are seen, what is drawn of them, and that the page's script draws the same."""

import json
import math
import re
from html import unescape

import numpy as np
import pytest
import torch
from normgeom_lab.common.pictures import ONE_UP, THIRD_UP, Part, Turning, seen

AT = dict(turn=0.7, tilt=0.4)


@pytest.mark.parametrize("frame", [ONE_UP, THIRD_UP], ids=["one up", "third up"])
def test_a_projection_is_a_rotation_with_its_last_row_upright(frame):
    rotation = seen(torch.eye(3), **AT, frame=frame).T
    assert torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-15), "lengths change"
    assert abs(float(torch.linalg.det(rotation)) - 1) < 1e-15, "a mirror image"
    right, up, near = seen(frame[2:], **AT, frame=frame)[0].tolist()
    assert abs(right) < 1e-15 and up > 0, "the upright direction leans"
    assert abs(up - math.cos(0.4)) < 1e-15 and abs(near - math.sin(0.4)) < 1e-15, "not seen from above"


def test_turning_goes_round_the_upright_direction():
    x = torch.tensor([[0.3, -1.2, 2.0]]).double()
    turned = [seen(x, turn, 0.0)[0] for turn in (0.0, 0.9, 1.8)]
    assert all(abs(float(v[1] - x.sum() / 3**0.5)) < 1e-15 for v in turned), "the height changes"
    angles = [math.atan2(-v[2], v[0]) for v in turned]
    assert np.allclose(np.diff(angles) % (2 * math.pi), 0.9)


def picture(**changes):
    parts = [
        Part(torch.tensor([[0.0, 0, 0], [1, 0, 0], [torch.nan] * 3, [0, 1, 0], [0, 0, 1]]), dash="2 4"),
        Part(torch.eye(3), "area", at={0: 1}),
        Part(torch.tensor([[1.0, 1, 1], [-1, -1, -1]]), "dots", square=True),
        Part(torch.tensor([[1.0, 0, 0]]), "text", words="a < b", at={0: 0}),
    ]
    return Turning(parts, {"shown": ["name", "area"]}, [0], **AT, **changes)


def test_a_drawing_needs_no_script():
    page = picture().page("two lines & a name")
    assert 'role="img" aria-label="two lines &amp; a name"' in page
    line, area, dots, text = re.findall(r"<(?:path|g|text) data-x=.*", page)
    moves = re.search(r' d="([^"]*)"', line)[1]
    scale = 430 / 2 / 2.3
    expected = [(x * scale, -y * scale) for x, y, _ in seen(torch.eye(3), **AT).tolist()]
    corners = [tuple(map(float, corner.split(","))) for corner in re.findall(r"-?[\d.]+,-?[\d.]+", moves)]
    assert np.allclose(corners, [(0, 0), *expected], atol=0.051) and moves.count("M") == 2, "a line that does not end"
    assert "display:none" in area and 'd=""' in area, "drawn at another position of the slider"
    far, near = re.findall(r'<path d="([^"]*)"', dots)
    assert far.count("M") == near.count("M") == 1 and 'opacity="0.35"' in dots, "behind is as strong as before"
    assert "a &lt; b" in text and "display" not in text


def test_the_page_has_what_its_script_needs():
    page = picture().page("words")
    view = json.loads(unescape(re.search(r'data-view="([^"]*)"', page)[1]))
    assert np.allclose(view["frame"], ONE_UP) and view["turn"] == 0.7
    assert f'value="{math.degrees(0.4):.4f}"' in page
    assert json.loads(unescape(re.search(r'data-labels="([^"]*)"', page)[1])) == ["name", "area"]
    assert "<output>name</output>" in page, "a slider without its value where no script runs"
    assert page.count("<script>") == 1 and re.search(r'getElementById\("turning-[0-9a-f]{12}"\)', page)


DRAWN = """() => [...document.querySelectorAll("svg [d], svg [x]")].map(e => [
    e.closest("[data-x]").style.display === "none",
    e.getAttribute("d") ?? `${e.getAttribute("x")},${e.getAttribute("y")}`,
])"""


def test_the_script_begins_with_the_same_drawing(browser):
    """What Python has drawn for pages without scripts is what the script draws before anything is turned."""
    seen = {}
    text = picture().page("words")
    for scripts, content in ((False, text[: text.index("<script>")]), (True, text)):
        page = browser.new_page()
        page.set_content(content)
        seen[scripts] = page.evaluate(DRAWN)
        page.close()
    assert len(seen[True]) == len(seen[False]) == 5 and [hidden for hidden, _ in seen[True]].count(True) == 1
    for (hidden, by_script), (also, by_python) in zip(seen[True], seen[False], strict=True):
        assert hidden == also, "another part is shown"
        numbers = [np.array(re.findall(r"-?[\d.]+", text), float) for text in (by_script, by_python)]
        assert len(numbers[0]) == len(numbers[1]) and np.all(np.abs(numbers[0] - numbers[1]) < 0.11), by_script
