"""A norm to hold: where points are seen, and words that say the norm's numbers."""

import re

import matplotlib.pyplot as plt
import normgeom as ng
import pytest
import torch
from normgeom_lab.common import pictures
from normgeom_lab.common.pictures import held, hold
from normgeom_lab.common.space import seen


def test_space_is_seen_from_a_little_above_with_1_upright():
    rotation = seen(torch.eye(3))
    assert torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-15), "lengths change"
    assert abs(float(torch.linalg.det(rotation)) - 1) < 1e-15, "a mirror image"
    right, up, near = seen(torch.ones(1, 3))[:, 0].tolist()
    assert abs(right) < 1e-15 and up > 2 * near > 0


@pytest.mark.parametrize("centered", [True, False])
def test_the_words_have_the_norms_numbers(centered):
    x, gain = torch.tensor([0.3, -1.2, 2.0]).double(), torch.tensor([1.5, 0.5, -1.0]).double()
    figure, words = held(x.tolist(), gain.tolist(), 0.01, centered)
    plt.close(figure)
    y = (ng.layer_norm if centered else ng.rms_norm)(x, gain, eps=0.01)
    assert f"y = ({', '.join(f'{v:.2f}' for v in y.tolist())})" in words
    axes = ng.Ellipsoid(gain, centered=centered).semi_axes.tolist()
    assert words.endswith(f"{', '.join(f'{a:.2f}' for a in axes)}.") and len(axes) == (2 if centered else 3)


def test_a_norm_to_hold_shows_its_arguments(monkeypatch):
    bundles = []
    monkeypatch.setattr(pictures, "display", lambda data, raw: raw and bundles.append(data))

    def output(**changes):
        hold(**changes)
        data = bundles[-1]
        assert data["text/html"].startswith('<div class="hold" data-show="norm"><img')
        return re.search(r"y = (\([^)]*\))", data["text/plain"])[1]

    x = torch.tensor([2.2, 0.4, -0.5])
    assert output() == output(x=(x + 1).tolist()), "prop-shift"
    assert output() != output(x=(x + 1).tolist(), centered=False)
