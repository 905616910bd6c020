"""Self-checks accept the right function and name the mistake of each wrong one, on the CPU and on a GPU."""

from itertools import combinations

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from normgeom import exercises
from normgeom.exercises import arrows, forward, jacobians, successors
from normgeom.exercises.judge import same

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
KNOWN = {
    name: getattr(subject, name.upper())
    for subject in (forward, arrows, jacobians, successors)
    for name in exercises.__all__
    if hasattr(subject, name.upper())
}
# Independent of the library: torch's own functions, their derivatives by autograd, and formulas by hand.
RIGHT = {
    "layer_norm": lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps),
    "rms_norm": lambda x, w, eps: F.rms_norm(x, x.shape[-1:], w, eps),
    "batch_norm": lambda x, w, b, eps: F.batch_norm(x, None, None, w, b, training=True, eps=eps),
    "project_out": lambda x, u: x - (x @ u / (u @ u)).unsqueeze(-1) * u,
    "angle": lambda x, u: torch.rad2deg(torch.acos(F.cosine_similarity(x, u.expand_as(x), dim=-1))),
    "layer_norm_jacobian": lambda x, w, eps: torch.autograd.functional.jacobian(
        lambda v: F.layer_norm(v, v.shape, w, None, eps), x
    ),
    "head_norm": lambda x, heads, w, eps: torch.cat(
        [F.rms_norm(part, part.shape[-1:], w, eps) for part in x.chunk(heads, -1)], dim=-1
    ),
    "sphere_step": lambda x, h, a: (
        x.shape[-1] ** 0.5 * F.normalize(x + a * (x.shape[-1] ** 0.5 * F.normalize(h, dim=-1) - x), dim=-1)
    ),
    "layer_norm_vjp": lambda x, w, grad, eps: torch.autograd.functional.vjp(
        lambda v: F.layer_norm(v, v.shape[-1:], w, None, eps), x, grad
    )[1],
}
MISTAKES = [(name, mistake) for name, exercise in KNOWN.items() for mistake in exercise.mistakes]


def test_every_check_is_tested():
    assert set(RIGHT) == set(KNOWN) == set(exercises.__all__), "a self-check without a right function or mistakes"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_function_is_accepted(name, device, capsys):
    assert getattr(exercises, name)(RIGHT[name], device)
    assert capsys.readouterr().out == "Right.\n"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_each_mistake_is_named(name, mistake, device, capsys):
    assert not getattr(exercises, name)(KNOWN[name].mistakes[mistake], device)
    assert capsys.readouterr().out == f"Not yet: {mistake}.\n"


@pytest.mark.parametrize("name", KNOWN)
def test_no_two_mistakes_are_the_same_on_the_probes(name):
    exercise = KNOWN[name]
    results = {m: [wrong(*probe) for probe in exercise.probes] for m, wrong in exercise.mistakes.items()}
    for one, other in combinations(results, 2):
        assert not same(results[one], results[other]), f"the probes do not tell {one!r} from {other!r}"


# Mistakes as readers write them, from torch alone.
WRITTEN = {
    "layer_norm": {
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
        "returned torch.float32 on cpu, expected torch.float64 on cpu": lambda x, w, b, eps: x.float(),
        "no mistake that this check knows": lambda x, w, b, eps: x**3,
    },
    "batch_norm": {
        "the divisor is B − 1": lambda x, w, b, eps: of_batch(x, w, b, eps, (0, 2), correction=1),
        "this is layer norm": lambda x, w, b, eps: of_batch(x, w, b, eps, (1,)),
        "group norm with one group": lambda x, w, b, eps: F.group_norm(x, 1, w, b, eps),
        "the positions are not averaged over": lambda x, w, b, eps: of_batch(x, w, b, eps, (0,)),
        "take them feature by feature": lambda x, w, b, eps: of_batch(x, w, b, eps, (0, 1, 2)),
        "gain and bias run along the last axis": lambda x, w, b, eps: (
            F.batch_norm(x, None, None, training=True, eps=eps) * w + b
        ),
        "the bias β is forgotten": lambda x, w, b, eps: F.batch_norm(x, None, None, w, None, training=True, eps=eps),
        "this is inference": lambda x, w, b, eps: F.batch_norm(
            x, torch.zeros_like(w), torch.ones_like(w), w, b, training=False, eps=eps
        ),
    },
    "layer_norm_jacobian": {
        "ε is forgotten": lambda x, w, eps: RIGHT["layer_norm_jacobian"](x, w, 0.0),
        "this is RMSNorm's Jacobian": lambda x, w, eps: torch.func.jacrev(lambda v: F.rms_norm(v, v.shape, w, eps))(x),
        "this is the transpose": lambda x, w, eps: RIGHT["layer_norm_jacobian"](x, w, eps).T,
        "s, too, depends on x": lambda x, w, eps: torch.func.jacrev(
            lambda v: w * (v - v.mean()) / (v.var(correction=0) + eps).sqrt().detach()
        )(x),
        "the mean, too, depends on x": lambda x, w, eps: torch.func.jacrev(
            lambda v: w * (v - v.mean().detach()) / (v.var(correction=0) + eps).sqrt()
        )(x),
    },
    "layer_norm_vjp": {
        "the gain γ is forgotten": lambda x, w, grad, eps: RIGHT["layer_norm_vjp"](x, torch.ones_like(w), grad, eps),
        "this is the product with J": lambda x, w, grad, eps: torch.autograd.functional.jvp(
            lambda v: F.layer_norm(v, v.shape[-1:], w, None, eps), x, grad
        )[1],
        "this is RMSNorm's": lambda x, w, grad, eps: torch.autograd.functional.vjp(
            lambda v: F.rms_norm(v, v.shape[-1:], w, eps), x, grad
        )[1],
    },
}


def of_batch(x, weight, bias, eps, axes, correction=0):
    axes, along = [axis for axis in axes if axis < x.dim()], (-1, *[1] * (x.dim() - 2))
    spread = torch.sqrt(x.var(axes, correction=correction, keepdim=True) + eps)
    return weight.reshape(along) * (x - x.mean(axes, keepdim=True)) / spread + bias.reshape(along)


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, wrong in WRITTEN.items() for said in wrong])
def test_mistakes_as_they_are_written(name, said, capsys):
    assert not getattr(ng.exercises, name)(WRITTEN[name][said], "cpu")
    assert said in capsys.readouterr().out


def test_the_probes_survive_a_function_that_writes_to_its_input():
    def greedy(x, w, b, eps):
        for given in (x, w, b):
            given.zero_()
        return x

    before = [[given.clone() for given in probe[:3]] for probe in forward.LAYER_NORM.probes]
    assert not exercises.layer_norm(greedy, "cpu")
    for probe, kept in zip(forward.LAYER_NORM.probes, before, strict=True):
        assert all(map(torch.equal, probe[:3], kept)), "a reader's function changed what the next one is tried on"
