"""Norms of single heads: against torch's own norm on each stretch, one by one, and against Qwen 3's and OLMo 2's."""

import re

import normgeom as ng
import pytest
import torch
from norm_checks import close, draw, rounding, true_layer_norm, true_rms_norm, ulps
from normgeom.norms.heads import HeadGain
from surgery_models import uneven
from tiny_models import token_ids
from torch import nn
from torch.func import jacrev, jvp

HEADS, SIZE, EPS = 3, 4, 1e-2
D = HEADS * SIZE
KINDS = pytest.mark.parametrize("centered", [False, True], ids=["rms", "layer"])

# torch.compile's own imports warn
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def unrolled(x, heads, weight=None, eps=1e-6, centered=False):
    """One stretch of the last axis after the other, each through torch's own norm."""
    true, size = true_layer_norm if centered else true_rms_norm, x.shape[-1] // heads
    return torch.cat([true(x[..., h * size : (h + 1) * size], weight, None, eps) for h in range(heads)], -1)


def drawn(rows=(2, 5), dtype=torch.float64):
    """Heads whose sizes and means differ, with the gain of one head."""
    unlike = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64).repeat_interleave(SIZE)
    x = draw(*rows, D) * unlike + unlike.flip(0)
    return x.to(dtype), draw(SIZE, seed=1, mean=1.5, dtype=dtype)


def allowed(x, expected, centered):
    """Rounding in float64; a mean that is subtracted leaves its own, in units of a scale that is √ε at least."""
    return rounding(expected, torch.float64) * (float(x.abs().max()) / EPS**0.5 if centered else 1.0)


def apart(a, b):
    return float((a.detach().double() - b.detach().double()).abs().max())


# values


@KINDS
@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_every_head_is_normalised_by_itself(heads, centered):
    x = drawn()[0]
    for given in ((), (draw(D // heads, seed=1),)):
        expected = unrolled(x, heads, *given, eps=EPS, centered=centered)
        got = ng.head_norm(x, heads, *given, eps=EPS, centered=centered)
        close(got, expected, allowed(x, expected, centered), f"{heads} heads", "Another head's statistics?")


def test_by_hand():
    # mean squares 25 and 1, and 25 + 11 = 6², 1 + 11 = 12
    x = torch.tensor([1.0, 7.0, 1.0, -1.0], dtype=torch.float64)
    expected = torch.tensor([1 / 6, 7 / 6, 12**-0.5, -(12**-0.5)], dtype=torch.float64)
    close(ng.head_norm(x, 2, eps=11.0), expected, 1e-15, "(1, 7 | 1, -1) at ε = 11", "One scale for both heads?")


def near_misses(x, weight, centered):
    kind = dict(eps=EPS, centered=centered)
    every = weight.repeat(HEADS)
    mixed = x.unflatten(-1, (SIZE, HEADS)).mT.flatten(-2)
    back = lambda y: y.unflatten(-1, (HEADS, SIZE)).mT.flatten(-2)  # noqa: E731
    return {
        "the whole width, as in OLMo 2": unrolled(x, 1, every, **kind),
        "heads interleaved": back(unrolled(mixed, HEADS, weight, **kind)),
        "as many sizes as heads": unrolled(x, SIZE, weight[:HEADS], **kind),
        "length 1": unrolled(x, HEADS, weight / SIZE**0.5, **kind),
        "the other kind of norm": unrolled(x, HEADS, weight, EPS, not centered),
        "ε left out": unrolled(x, HEADS, weight, 0.0, centered),
        "gain one plus weight": unrolled(x, HEADS, 1 + weight, **kind),
    }


@KINDS
def test_near_misses_are_far(centered):
    x, weight = drawn()
    got = ng.head_norm(x, HEADS, weight, EPS, centered)
    for name, wrong in near_misses(x, weight, centered).items():
        assert apart(got, wrong) > 1e-2, f"{name}: the drawn arguments could not tell it apart"


def test_the_default_epsilon_is_rms_norms():
    x = drawn()[0] * 1e-3
    close(ng.head_norm(x, HEADS), unrolled(x, HEADS, eps=1e-6), 1e-13, "small heads", "Another default of ε?")


def test_leading_axes_are_only_carried_along():
    x, weight = drawn(rows=(2, 3, 2))
    got = ng.head_norm(x, HEADS, weight)
    assert torch.equal(ng.head_norm(x.flatten(0, -2), HEADS, weight).view_as(x), got)
    assert torch.equal(ng.head_norm(x[1, 2, 0], HEADS, weight), got[1, 2, 0]), "a single vector"
    strided = x.transpose(0, 1)
    assert torch.equal(ng.head_norm(strided, HEADS, weight), got.transpose(0, 1)), "it does not lie in order in memory"


@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_are_rounded_once(dtype, centered):
    x, weight = drawn(rows=(64,), dtype=dtype)
    got = ng.head_norm(x, HEADS, weight, EPS, centered)
    assert got.dtype == dtype
    expected = unrolled(x.double(), HEADS, weight.double(), EPS, centered).to(dtype)
    clear = expected.abs() > 1e-2  # beside a zero crossing one rounding is many representable numbers
    assert ulps(got[clear], expected[clear]) <= 1, "statistics in the input's dtype, or rounded twice?"


# derivatives


@KINDS
def test_the_jacobian_has_a_block_for_each_head(centered):
    x, weight = drawn(rows=())
    true = true_layer_norm if centered else true_rms_norm
    got = jacrev(lambda t: ng.head_norm(t, HEADS, weight, EPS, centered))(x)
    blocks = [jacrev(lambda t: true(t, weight, None, EPS))(part) for part in x.split(SIZE)]
    expected = torch.block_diag(*blocks)
    close(got, expected, 1e-13, "Jacobian", "Detached statistics?")
    assert (got[expected == 0] == 0).all(), "one head's output changes with another's input"
    v = draw(D, seed=5)
    _, along = jvp(lambda t: ng.head_norm(t, HEADS, weight, EPS, centered), (x,), (v,))
    close(along, expected @ v, 1e-13, "jvp", "Detached statistics?")


# what is wrong with an argument

X, W = torch.zeros(2, D), torch.ones(SIZE)
CASES = {
    "x is a list": (dict(x=[1.0] * D), TypeError, "x: expected a floating-point tensor, got list"),
    "x is integer": (dict(x=X.long()), TypeError, "x: expected a floating-point dtype, got torch.int64"),
    "heads do not divide": (dict(heads=5), ValueError, "heads: expected a divisor of d = 12, got 5"),
    "more heads than entries": (dict(heads=24), ValueError, "heads: expected a divisor of d = 12, got 24"),
    "no heads": (dict(heads=0), ValueError, "heads: expected a divisor of d = 12, got 0"),
    "fewer heads than none": (dict(heads=-3), ValueError, "heads: expected a divisor of d = 12, got -3"),
    "heads are a float": (dict(heads=3.0), TypeError, "heads: expected an integer, got float"),
    "heads are a truth value": (dict(heads=True), TypeError, "heads: expected an integer, got bool"),
    "heads are None": (dict(heads=None), TypeError, "heads: expected an integer, got NoneType"),
    "weight of all heads": (dict(weight=torch.ones(D)), ValueError, "weight: expected shape (4,)"),
    "weight of the number of heads": (dict(weight=torch.ones(HEADS)), ValueError, "weight: expected shape (4,)"),
    "weight is integer": (dict(weight=W.long()), TypeError, "weight: expected a floating-point dtype, got torch.int64"),
    "eps is negative": (dict(eps=-1e-6), ValueError, "eps: expected a number >= 0, got -1e-06"),
    "eps is NaN": (dict(eps=float("nan")), ValueError, "eps: expected a number >= 0, got nan"),
}


@KINDS
@pytest.mark.parametrize(("given", "error", "message"), CASES.values(), ids=CASES)
def test_bad_input_is_named(given, error, message, centered):
    with pytest.raises(error, match="^" + re.escape(message)):
        ng.head_norm(**{"x": X, "heads": HEADS, "centered": centered, **given})


@pytest.mark.parametrize("x", [torch.tensor(1.0), torch.zeros(4, 0)], ids=["a scalar", "no features"])
def test_an_input_without_an_axis_is_named(x):
    with pytest.raises(ValueError, match=r"^x: expected shape"):
        ng.head_norm(x, HEADS)


@pytest.mark.parametrize("width", [9, 10, 24])
def test_an_input_of_another_size_is_named(width):
    with pytest.raises(ValueError, match=rf"^x: expected .* 12.* got .*{width}"):
        ng.HeadNorm(D, HEADS)(torch.zeros(2, width))


def test_a_gain_for_each_number_keeps_the_dtype():
    """As the other norms do beside parameters in float32."""
    x = drawn()[0].bfloat16()
    assert ng.HeadNorm(D, HEADS)(x).dtype == torch.bfloat16
    assert HeadGain(D, HEADS, 0.05)(x).dtype == torch.bfloat16


@pytest.mark.parametrize("module", [ng.HeadNorm, lambda d, heads: HeadGain(d, heads, 1.0)], ids=["norm", "gain"])
@pytest.mark.parametrize(
    ("d", "heads", "error", "message"),
    [
        (12, 5, ValueError, "heads: expected a divisor of d = 12, got 5"),
        (0, 1, ValueError, "heads: expected a divisor of d = 0, got 1"),
        (12, 2.0, TypeError, "heads: expected an integer, got float"),
    ],
)
def test_a_module_of_wrong_sizes_is_named(module, d, heads, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        module(d, heads)


# modules


def with_drawn_gain(module):
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=i, mean=1.5))
    return module


@KINDS
def test_the_module_is_the_function(centered):
    module, x = ng.HeadNorm(D, HEADS, centered, EPS), drawn()[0]
    names = ["norm.weight", "norm.bias"] if centered else ["norm.weight"]
    assert list(module.state_dict()) == names, "the gain of one head, the same for all"
    assert {tuple(t.shape) for t in module.state_dict().values()} == {(SIZE,)}
    module = with_drawn_gain(module.double())
    expected = unrolled(x, HEADS, module.norm.weight, eps=EPS, centered=centered)
    expected = expected + (module.norm.bias.repeat(HEADS) if centered else 0)
    close(module(x), expected, allowed(x, expected, centered), "HeadNorm", "A parameter that is not used?")


@KINDS
def test_find_norms_finds_one_head(centered):
    model = nn.Sequential(nn.Linear(6, D), with_drawn_gain(ng.HeadNorm(D, HEADS, centered, EPS)), nn.Linear(D, 6))
    (site,) = ng.find_norms(model, torch.randn(2, 5, 6))
    assert (site.name, site.kind, site.dim) == ("1.norm", "layer" if centered else "rms", SIZE)
    assert site.module is model[1].norm and site.eps == EPS and site.token_axis == 1
    torch.testing.assert_close(site.weight, model[1].norm.weight.detach(), rtol=1e-4, atol=1e-5)


def test_a_gain_for_each_number_of_each_head():
    """The gain in use is weight / scale: nGPT's s_qk."""
    module = HeadGain(D, HEADS, scale=0.05)
    assert list(module.state_dict()) == ["weight"] and torch.equal(module.weight, torch.full((D,), 0.05))
    x = drawn()[0]
    close(module.double()(x), unrolled(x, HEADS, eps=0.0), 1e-6, "at first", "The stored number is no gain.")
    gain = with_drawn_gain(module).weight / 0.05
    expected = (gain * unrolled(x, HEADS, eps=0.0)).detach()
    close(module(x), expected, rounding(expected, torch.float64), "HeadGain", "The same gain for every head?")
    assert apart(expected, unrolled(x, HEADS, eps=0.0) * gain[:SIZE].repeat(HEADS)) > 0.1


def test_adam_moves_the_gain_by_its_own_unit():
    """A first step of Adam changes what is stored by the rate, and so the gain by rate / scale."""
    module = HeadGain(D, HEADS, scale=0.05).double()
    x, gain = drawn()[0], lambda: module(x).detach() / unrolled(x, HEADS, eps=0.0)
    before = gain()
    module(x).square().sum().backward()
    torch.optim.Adam(module.parameters(), lr=1e-4, eps=0.0).step()
    moved = before - gain()
    close(moved, torch.full_like(moved, 1e-4 / 0.05), 1e-12, "a step", "The unit of the gain, not of its store?")


# models of transformers

IDS = token_ids(2, 7)


def queries(family):
    """What the map to queries gives, flat, what their norm makes of it, the norm, and how many heads there are."""
    model, seen = uneven(family, dtype=torch.float32), {}
    attention, heads = model.model.layers[1].self_attn, model.config.num_attention_heads
    for head, rows in enumerate(attention.q_proj.weight.data.chunk(heads)):
        rows *= head + 1  # heads as long as each other would have one scale
    hooks = [
        getattr(attention, name).register_forward_hook(lambda *a, name=name: seen.update({name: a[2].detach()}))
        for name in ("q_proj", "q_norm")
    ]
    with torch.no_grad():
        model(IDS)
    for hook in hooks:
        hook.remove()
    return seen["q_proj"], seen["q_norm"].reshape(2, 7, -1), attention.q_norm, heads


def test_qwen_3_normalises_each_head():
    x, y, norm, heads = queries("qwen3")
    assert norm.weight.shape == (x.shape[-1] // heads,), "one gain for all heads"
    got = ng.head_norm(x, heads, norm.weight.detach(), eps=norm.variance_epsilon)
    close(got, y, rounding(y, torch.float32), "Qwen 3's queries", "Another layout of the heads?")
    whole = ng.rms_norm(x, norm.weight.detach().repeat(heads), eps=norm.variance_epsilon)
    assert apart(whole, y) > 0.1, "a norm of the whole width passes too"


def test_olmo_2_normalises_the_whole_width():
    x, y, norm, heads = queries("olmo2")
    assert norm.weight.shape == x.shape[-1:], "a gain for each number of each head"
    whole = ng.rms_norm(x, norm.weight.detach(), eps=norm.variance_epsilon)
    close(whole, y, rounding(y, torch.float32), "OLMo 2's queries", "Not of the whole width?")
    each = ng.head_norm(x, heads, eps=norm.variance_epsilon) * norm.weight.detach()
    assert apart(each, y) > 0.1, "norms of single heads pass too"
