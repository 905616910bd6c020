"""A norm to hold, with a kernel: the numbers of its words, and sliders that draw anew."""

import re

import matplotlib.pyplot as plt
import normgeom as ng
import pytest
import torch
from normgeom_lab.common import pictures as module
from normgeom_lab.common.pictures import START, held, hold


@pytest.fixture
def shown(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "show_live", lambda view, page, words: seen.append((view, page, words)))
    return seen


@pytest.mark.parametrize("centered", [True, False])
def test_the_words_have_the_norms_numbers(centered):
    x, gain = torch.tensor([0.3, -1.2, 2.0]).double(), torch.tensor([1.5, 0.5, -1.0]).double()
    figure, words = held(x.tolist(), gain.tolist(), 0.01, centered)
    plt.close(figure)
    y = (ng.layer_norm if centered else ng.rms_norm)(x, gain, eps=0.01)
    assert f"y = ({', '.join(f'{v:.2f}' for v in y.tolist())})" in words
    axes = ng.Ellipsoid(gain, centered=centered).semi_axes.tolist()
    assert words.endswith(f"{', '.join(f'{a:.2f}' for a in axes)}.") and len(axes) == (2 if centered else 3)


def test_the_jacobians_image_is_drawn():
    """A circle around x, its image, its true image: three lines more."""
    plain, small = (held(**START, show=show)[0] for show in ("norm", "jacobian"))
    assert len(small.axes[0].lines) - len(plain.axes[0].lines) == 3
    plt.close("all")


def test_sliders_draw_anew(shown):
    hold()
    [(view, page, words)] = shown
    assert page.startswith('<div class="hold" data-show="norm"><img') and "semi-axes" in words
    *controls, picture = view.children
    named = {control.description: control for control in controls}
    before = picture.value
    named["x1"].value += 1
    named["x2"].value += 1
    named["x3"].value += 1

    def output():
        return re.search(r"y = (\([^)]*\))", picture.value)[1]

    assert picture.value != before and output() == re.search(r"y = (\([^)]*\))", before)[1], "prop-shift"
    named["subtract the mean"].value = False
    assert output() != re.search(r"y = (\([^)]*\))", before)[1]
