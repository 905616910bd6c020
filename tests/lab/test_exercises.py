"""Self-checks accept the right function and name the mistake of each wrong one."""

import copy
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from normgeom_lab import exercises
from normgeom_lab.exercises import Exercise, same
from torch import Tensor

GRADERS = {name: value for name, value in vars(exercises).items() if isinstance(value, Exercise)}
LEAST = 4  # mistakes that a check knows
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
    "bisection": lambda gain: torch.linalg.eigvalsh(torch.outer(gain, gain) * (torch.eye(len(gain)) - 1 / len(gain)))[
        1:
    ],
}
MISTAKES = [(name, said) for name, exercise in GRADERS.items() for said in exercise.mistakes]


def recovered(y, weight, bias, eps):
    """Entry by entry: n, its missing entry, and then x less its mean."""
    n = torch.nan_to_num((y - bias) / weight, nan=0.0, posinf=0.0, neginf=0.0)
    n[..., weight == 0] = -n.sum(-1, keepdim=True)
    return n * eps**0.5 / torch.sqrt(1 - torch.linalg.vecdot(n, n).unsqueeze(-1) / n.shape[-1])


def test_every_check_is_tested():
    assert set(RIGHT) == set(GRADERS), "a self-check without a right function of this file"


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_function_is_accepted(name, capsys):
    assert GRADERS[name](RIGHT[name])
    assert capsys.readouterr().out == "Right.\n"


@pytest.mark.parametrize(("name", "said"), MISTAKES)
def test_each_mistake_is_named_and_what_to_do(name, said, capsys):
    assert ". " in said, "a message names the mistake, then says after a full stop what to do"
    mistake, advice = said.split(". ", 1)
    assert "; " not in mistake and advice.endswith("."), "the mistake is a clause, the advice whole sentences"
    assert not GRADERS[name](GRADERS[name].mistakes[said])
    assert capsys.readouterr().out == f"Not yet: {said}\n"


@pytest.mark.parametrize("name", GRADERS)
def test_no_two_of_many_mistakes_are_the_same_on_the_probes(name):
    exercise = GRADERS[name]
    assert len(exercise.mistakes) >= LEAST
    wrong = {**exercise.mistakes, "right": exercise.right}
    results = {said: [function(*probe) for probe in exercise.probes] for said, function in wrong.items()}
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
        "the statistics are taken over the wrong axis": lambda x, w, b, eps: (
            w * (x - x.mean(0)) / torch.sqrt(x.var(0, correction=0) + eps) + b
        ),
        "your function raised": lambda x, w, b, eps: x.no_such_method(),
        "returned a float": lambda x, w, b, eps: 1.0,
        "shape (4, 5) in torch.float64, expected shape (4, 5, 6) in torch.float64": lambda x, w, b, eps: x.mean(-1),
        "shape (4, 5, 6) in torch.float32, expected shape (4, 5, 6) in": lambda x, w, b, eps: x.float(),
        "changes its arguments": lambda x, w, b, eps: x.sub_(x.mean(-1, keepdim=True)),
        "no mistake that this check knows": lambda x, w, b, eps: x**3,
    },
    "rms_norm": {"√d is missing": lambda x, w, eps: w * x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)},
    "project_out": {"this is the component": lambda x, u: (x @ u / u.square().sum())[..., None] * u},
    "angle": {"in radians": lambda x, u: torch.acos(F.cosine_similarity(x, u.expand_as(x), dim=-1))},
    "occupancy": {
        "long vectors count more": lambda h, u: len(u) * (h @ u).square().sum() / (h.square().sum() * u.square().sum()),
    },
    "recover": {
        "set to 0": lambda y, w, b, eps: scaled(torch.where(w == 0, 0, (y - b) / w), eps),
        "0/0 is NaN": lambda y, w, b, eps: scaled((y - b) / w, eps),
    },
    "bisection": {
        "the gains are not squared": lambda gain: by_bisection(gain.sort().values),
        "0 is among the eigenvalues": lambda gain: torch.linalg.eigvalsh(
            torch.diag(gain**2) - torch.outer(gain, gain) / len(gain)
        ),
    },
    "batch_norm": {
        "the divisor is B − 1": lambda x, w, b, eps: of_batch(x, w, b, eps, (0, 2), correction=1),
        "This is layer norm": lambda x, w, b, eps: of_batch(x, w, b, eps, (1,)),
        "the positions are not averaged over": lambda x, w, b, eps: of_batch(x, w, b, eps, (0,)),
    },
    "layer_norm_jacobian": {
        "ε is in 1/s but missing in n": lambda *case: with_unit_vector(*case),
        "s depends on x too": lambda x, w, eps: torch.func.jacrev(
            lambda v: w * (v - v.mean()) / (v.var(correction=0) + eps).sqrt().detach()
        )(x),
    },
    "layer_norm_vjp": {
        "This is the product with J": lambda x, w, grad, eps: torch.autograd.functional.jvp(
            lambda v: F.layer_norm(v, v.shape[-1:], w, None, eps), x, grad
        )[1],
    },
}


def scaled(n, eps):
    return n * torch.sqrt(eps / (1 - n.square().mean(-1, keepdim=True)))


def by_bisection(poles):
    low, high = poles[:-1].clone(), poles[1:].clone()
    for _ in range(80):
        middle = (low + high) / 2
        above = (1 / (poles - middle[:, None])).sum(-1) > 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2


def of_batch(x, weight, bias, eps, axes, correction=0):
    axes, along = [axis for axis in axes if axis < x.dim()], (-1, *[1] * (x.dim() - 2))
    spread = torch.sqrt(x.var(axes, correction=correction, keepdim=True) + eps)
    return weight.reshape(along) * (x - x.mean(axes, keepdim=True)) / spread + bias.reshape(along)


def with_unit_vector(x, weight, eps):
    along = F.normalize(x - x.mean(), dim=0)
    projector = torch.eye(len(x), dtype=x.dtype) - 1 / len(x) - torch.outer(along, along)
    return weight[:, None] * projector / torch.sqrt(x.var(correction=0) + eps)


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, wrong in WRITTEN.items() for said in wrong])
def test_mistakes_as_they_are_written(name, said, capsys):
    before = copy.deepcopy(GRADERS[name].probes)
    assert not GRADERS[name](WRITTEN[name][said])
    assert said in capsys.readouterr().out
    assert same(*([v for probe in of for v in probe if isinstance(v, Tensor)] for of in (GRADERS[name].probes, before)))
