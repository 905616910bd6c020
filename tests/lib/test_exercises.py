"""Self-checks accept the right function and name the mistake of each wrong one, on the CPU and on a GPU."""

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from normgeom import exercises

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
# Independent of the library: torch's own functions, and formulas by hand.
RIGHT = {
    "layer_norm": lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps),
    "rms_norm": lambda x, w, eps: F.rms_norm(x, x.shape[-1:], w, eps),
    "project_out": lambda x, u: x - (x @ u / (u @ u)).unsqueeze(-1) * u,
    "angle": lambda x, u: torch.rad2deg(torch.acos(F.cosine_similarity(x, u.expand_as(x), dim=-1))),
}
MISTAKES = [(name, m) for name in RIGHT for m in getattr(exercises, f"_{name.upper()}").mistakes]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_function_is_accepted(name, device, capsys):
    assert getattr(exercises, name)(RIGHT[name], device)
    assert capsys.readouterr().out == "Right.\n"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_each_mistake_is_named(name, mistake, device, capsys):
    wrong = getattr(exercises, f"_{name.upper()}").mistakes[mistake]
    assert not getattr(exercises, name)(wrong, device)
    assert capsys.readouterr().out == f"Not yet: {mistake}.\n"


# Mistakes as readers write them, from torch alone.
WRITTEN = {
    "ε stands outside the root": lambda x, w, b, eps: (
        w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, correction=0, keepdim=True) + eps) + b
    ),
    "the divisor is d − 1": lambda x, w, b, eps: (
        w * (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + eps) + b
    ),
    "the gain γ is forgotten": lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], None, b, eps),
    "the statistics run over the wrong axis": lambda x, w, b, eps: (
        w * (x - x.mean(0)) / torch.sqrt(x.var(0, correction=0) + eps) + b
    ),
    "your function raised": lambda x, w, b, eps: x.no_such_method(),
    "returned a float": lambda x, w, b, eps: 1.0,
    "returned shape (4, 5), expected (4, 5, 6)": lambda x, w, b, eps: x.mean(-1),
    "no mistake that this check knows": lambda x, w, b, eps: x**3,
}


@pytest.mark.parametrize("said", WRITTEN)
def test_mistakes_as_they_are_written(said, capsys):
    assert not ng.exercises.layer_norm(WRITTEN[said], "cpu")
    assert said in capsys.readouterr().out


def test_the_probes_survive_a_function_that_writes_to_its_input(capsys):
    def greedy(x, w, b, eps):
        x.zero_()
        return x

    assert not exercises.layer_norm(greedy, "cpu")
    assert exercises.layer_norm(RIGHT["layer_norm"], "cpu")
