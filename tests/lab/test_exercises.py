"""Self-checks accept the right function and name the mistake of each wrong one, on the CPU and on a GPU."""

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from normgeom_lab.exercises import GRADERS, same

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
LEAST = 6  # mistakes that a check knows
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
    "occupancy": lambda h, u: len(u) * F.normalize(h, dim=-1).matmul(F.normalize(u, dim=0)).flatten().square().mean(),
    "recover": lambda y, w, b, eps: recovered(y, w, b, eps),
    "bisection": lambda gain: torch.linalg.eigvalsh(
        torch.outer(gain, gain) * (torch.eye(len(gain), device=gain.device) - 1 / len(gain))
    )[1:],
}
MISTAKES = [(name, mistake) for name, exercise in GRADERS.items() for mistake in exercise.mistakes]


def recovered(y, weight, bias, eps):
    """Entry by entry: n, its missing entry, and then x less its mean."""
    n = torch.nan_to_num((y - bias) / weight, nan=0.0, posinf=0.0, neginf=0.0)
    n[..., weight == 0] = -n.sum(-1, keepdim=True)
    return n * eps**0.5 / torch.sqrt(1 - torch.linalg.vecdot(n, n).unsqueeze(-1) / n.shape[-1])


def test_every_check_is_tested():
    assert set(RIGHT) == set(GRADERS), "a self-check without a right function of this file"


@pytest.mark.parametrize("name", GRADERS)
def test_a_check_knows_many_mistakes_and_says_what_to_do(name):
    known = GRADERS[name].mistakes
    assert len(known) >= LEAST, f"only {len(known)} mistakes"
    for mistake, (advice, _) in known.items():
        assert not mistake.endswith(".") and "; " not in mistake, f"a name, not a sentence: {mistake!r}"
        assert advice.endswith("."), f"a sentence: {advice!r}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_function_is_accepted(name, device, capsys):
    assert GRADERS[name](RIGHT[name], device)
    assert capsys.readouterr().out == "Right.\n"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_each_mistake_is_named(name, mistake, device, capsys):
    advice, wrong = GRADERS[name].mistakes[mistake]
    assert not GRADERS[name](wrong, device)
    assert capsys.readouterr().out == f"Not yet: {mistake}. {advice}\n"


@pytest.mark.parametrize("name", GRADERS)
def test_no_two_mistakes_are_the_same_on_the_probes(name):
    exercise = GRADERS[name]
    results = {m: [wrong(*probe) for probe in exercise.probes] for m, (_, wrong) in exercise.mistakes.items()}
    results["right"] = [exercise.right(*probe) for probe in exercise.probes]
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
        "the gain γ comes before the norm": lambda x, w, b, eps: F.layer_norm(w * x, x.shape[-1:], None, b, eps),
        "Brackets are missing": lambda x, w, b, eps: (
            w * (x - x.mean(-1, keepdim=True) / torch.sqrt(x.var(-1, correction=0, keepdim=True) + eps)) + b
        ),
        "the statistics run over the wrong axis": lambda x, w, b, eps: (
            w * (x - x.mean(0)) / torch.sqrt(x.var(0, correction=0) + eps) + b
        ),
        "your function raised": lambda x, w, b, eps: x.no_such_method(),
        "returned a float": lambda x, w, b, eps: 1.0,
        "returned shape (4, 5), expected (4, 5, 6)": lambda x, w, b, eps: x.mean(-1),
        "returned torch.float32 on cpu, expected torch.float64 on cpu": lambda x, w, b, eps: x.float(),
        "changes what it is given": lambda x, w, b, eps: (
            w * x.sub_(x.mean(-1, keepdim=True)) / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) + b
        ),
        "computed in float32": lambda x, w, b, eps: F.layer_norm(
            x.float(), x.shape[-1:], w.float(), b.float(), eps
        ).double(),
        "no mistake that this check knows": lambda x, w, b, eps: x**3,
    },
    "rms_norm": {
        "the spread is that of x less its mean": lambda x, w, eps: (
            w * x / torch.sqrt(x.var(-1, correction=0, keepdim=True) + eps)
        ),
        "the divisor is d − 1": lambda x, w, eps: (
            w * x / torch.sqrt(x.square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + eps)
        ),
        "√d is missing": lambda x, w, eps: w * x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps),
    },
    "project_out": {
        "the direction is not made a unit vector": lambda x, u: x - torch.tensordot(x, u, 1)[..., None] * u,
        "this is the component": lambda x, u: (x @ u / u.square().sum())[..., None] * u,
        "the component is added": lambda x, u: x + (x @ u / u.square().sum())[..., None] * u,
        "mirrors": lambda x, u: x - (2 * x @ u / u.square().sum())[..., None] * u,
        "the mean of the entries": lambda x, u: x - x.mean(-1, keepdim=True),
    },
    "angle": {
        "in radians": lambda x, u: torch.acos(F.cosine_similarity(x, u.expand_as(x), dim=-1)),
        "wrong way round": lambda x, u: torch.acos(F.cosine_similarity(x, u.expand_as(x), dim=-1)) * torch.pi / 180,
        "angle to the hyperplane": lambda x, u: torch.rad2deg(torch.asin(F.cosine_similarity(x, u.expand_as(x), -1))),
        "without keepdim": lambda x, u: RIGHT["angle"](x, u).unsqueeze(-1),
    },
    "occupancy": {
        "long vectors count more": lambda h, u: len(u) * (h @ u).square().sum() / (h.square().sum() * u.square().sum()),
        "d is missing": lambda h, u: F.cosine_similarity(h, u.expand_as(h), dim=-1).square().mean(),
        "the mean comes before": lambda h, u: len(u) * F.cosine_similarity(h, u.expand_as(h), dim=-1).mean().square(),
    },
    "recover": {
        "set to 0": lambda y, w, b, eps: scaled(torch.where(w == 0, 0, (y - b) / w), eps),
        "0/0 is NaN": lambda y, w, b, eps: scaled((y - b) / w, eps),
    },
    "bisection": {
        "0 is among the eigenvalues": lambda gain: torch.linalg.eigvalsh(
            torch.diag(gain**2) - torch.outer(gain, gain) / len(gain)
        ),
        "the singular values of GΠ": lambda gain: torch.linalg.svdvals(
            torch.diag(gain) - gain[:, None] / len(gain)
        ).flip(0)[1:],
        "the eigenvalues descend": lambda gain: RIGHT["bisection"](gain).flip(0),
    },
    "batch_norm": {
        "the divisor is B − 1": lambda x, w, b, eps: of_batch(x, w, b, eps, (0, 2), correction=1),
        "This is layer norm": lambda x, w, b, eps: of_batch(x, w, b, eps, (1,)),
        "group norm with one group": lambda x, w, b, eps: F.group_norm(x, 1, w, b, eps),
        "the positions are not averaged over": lambda x, w, b, eps: of_batch(x, w, b, eps, (0,)),
        "Each feature has its own": lambda x, w, b, eps: of_batch(x, w, b, eps, (0, 1, 2)),
        "gain and bias run along the last axis": lambda x, w, b, eps: (
            F.batch_norm(x, None, None, training=True, eps=eps) * w + b
        ),
        "this is inference": lambda x, w, b, eps: F.batch_norm(
            x, torch.zeros_like(w), torch.ones_like(w), w, b, training=False, eps=eps
        ),
    },
    "layer_norm_jacobian": {
        "ε is forgotten": lambda x, w, eps: RIGHT["layer_norm_jacobian"](x, w, 0.0),
        "this is RMSNorm's Jacobian": lambda x, w, eps: torch.func.jacrev(lambda v: F.rms_norm(v, v.shape, w, eps))(x),
        "This is the transpose": lambda x, w, eps: RIGHT["layer_norm_jacobian"](x, w, eps).T,
        "s depends on x too": lambda x, w, eps: torch.func.jacrev(
            lambda v: w * (v - v.mean()) / (v.var(correction=0) + eps).sqrt().detach()
        )(x),
        "The mean depends on x too": lambda x, w, eps: torch.func.jacrev(
            lambda v: w * (v - v.mean().detach()) / (v.var(correction=0) + eps).sqrt()
        )(x),
    },
    "layer_norm_vjp": {
        "the gain γ is forgotten": lambda x, w, grad, eps: RIGHT["layer_norm_vjp"](x, torch.ones_like(w), grad, eps),
        "This is the product with J": lambda x, w, grad, eps: torch.autograd.functional.jvp(
            lambda v: F.layer_norm(v, v.shape[-1:], w, None, eps), x, grad
        )[1],
        "this is RMSNorm's": lambda x, w, grad, eps: torch.autograd.functional.vjp(
            lambda v: F.rms_norm(v, v.shape[-1:], w, eps), x, grad
        )[1],
    },
}


def scaled(n, eps):
    return n * torch.sqrt(eps / (1 - n.square().mean(-1, keepdim=True)))


def of_batch(x, weight, bias, eps, axes, correction=0):
    axes, along = [axis for axis in axes if axis < x.dim()], (-1, *[1] * (x.dim() - 2))
    spread = torch.sqrt(x.var(axes, correction=correction, keepdim=True) + eps)
    return weight.reshape(along) * (x - x.mean(axes, keepdim=True)) / spread + bias.reshape(along)


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, wrong in WRITTEN.items() for said in wrong])
def test_mistakes_as_they_are_written(name, said, capsys):
    assert not GRADERS[name](WRITTEN[name][said], "cpu")
    assert said in capsys.readouterr().out


def test_the_probes_survive_a_function_that_writes_to_its_input():
    def greedy(x, w, b, eps):
        for given in (x, w, b):
            given.zero_()
        return x

    before = [[given.clone() for given in probe[:3]] for probe in GRADERS["layer_norm"].probes]
    assert not GRADERS["layer_norm"](greedy, "cpu")
    for probe, kept in zip(GRADERS["layer_norm"].probes, before, strict=True):
        assert all(map(torch.equal, probe[:3], kept)), "a reader's function changed what the next one is tried on"
