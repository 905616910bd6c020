"""Norms of single heads: against torch's own norm on each stretch, one by one, and against Qwen 3's."""

import re

import normgeom as ng
import pytest
import torch
from norm_checks import close, draw, rounding, true_layer_norm, true_rms_norm
from surgery_models import uneven
from tiny_models import token_ids
from torch import nn

HEADS, SIZE, EPS = 3, 4, 1e-2
D = HEADS * SIZE
KINDS = pytest.mark.parametrize("centered", [False, True], ids=["rms", "layer"])


def unrolled(x, heads, weight=None, eps=1e-6, centered=False):
    """One stretch of the last axis after the other, each through torch's own norm."""
    true, size = true_layer_norm if centered else true_rms_norm, x.shape[-1] // heads
    return torch.cat([true(x[..., h * size : (h + 1) * size], weight, None, eps) for h in range(heads)], -1)


def drawn(*rows):
    """Heads whose sizes and means differ."""
    unlike = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64).repeat_interleave(SIZE)
    return draw(*rows, D) * unlike + unlike.flip(0)


def allowed(x, expected, centered):
    """Rounding in float64; a mean that is subtracted leaves its own, in units of a scale that is √ε at least."""
    return rounding(expected, torch.float64) * (float(x.abs().max()) / EPS**0.5 if centered else 1.0)


@KINDS
@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_every_head_is_normalised_by_itself(heads, centered):
    x = drawn(2, 5)
    for given in ((), (draw(D // heads, seed=1, mean=1.5),)):
        expected = unrolled(x, heads, *given, eps=EPS, centered=centered)
        got = ng.head_norm(x, heads, *given, eps=EPS, centered=centered)
        close(got, expected, allowed(x, expected, centered), f"{heads} heads", "Another head's statistics?")


def test_the_default_epsilon_is_rms_norms():
    x = drawn(2) * 1e-3
    close(ng.head_norm(x, HEADS), unrolled(x, HEADS, eps=1e-6), 1e-13, "small heads", "Another default of ε?")


X, W = torch.zeros(2, D), torch.ones(SIZE)
CASES = {
    "x is a list": (dict(x=[1.0] * D), TypeError, "x: expected a floating-point tensor, got list"),
    "x is a scalar": (dict(x=torch.tensor(1.0)), ValueError, "x: expected shape (..., d) with d >= 1, got ()"),
    "heads do not divide": (dict(heads=5), ValueError, "heads: expected a divisor of d = 12, got 5"),
    "no heads": (dict(heads=0), ValueError, "heads: expected a divisor of d = 12, got 0"),
    "fewer heads than none": (dict(heads=-3), ValueError, "heads: expected a divisor of d = 12, got -3"),
    "heads are a float": (dict(heads=3.0), ValueError, "heads: expected a divisor of d = 12, got 3.0"),
    "weight of all heads": (dict(weight=torch.ones(D)), ValueError, "weight: expected shape (4,)"),
    "weight is integer": (dict(weight=W.long()), TypeError, "weight: expected a floating-point dtype, got torch.int64"),
    "eps is negative": (dict(eps=-1e-6), ValueError, "eps: expected a number >= 0, got -1e-06"),
}


@pytest.mark.parametrize(("given", "error", "message"), CASES.values(), ids=CASES)
def test_bad_input_is_named(given, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        ng.head_norm(**{"x": X, "heads": HEADS, **given})


def test_a_module_names_bad_input():
    for d, heads in ((12, 5), (0, 1), (12, 2.0)):
        with pytest.raises(ValueError, match=f"^heads: expected a divisor of d = {d}, got {heads}"):
            ng.HeadNorm(d, heads)
    for width in (9, 10, 24):
        with pytest.raises(ValueError, match=rf"^x: expected .* 12.* got .*{width}"):
            ng.HeadNorm(D, HEADS)(torch.zeros(2, width))
    with pytest.raises(TypeError, match=r"^x: expected a floating-point tensor, got list"):
        ng.HeadNorm(D, HEADS)([1.0] * D)


def with_drawn_gain(module):
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=i, mean=1.5))
    return module


@KINDS
def test_the_module_is_the_function(centered):
    module, x = ng.HeadNorm(D, HEADS, centered, EPS), drawn(2, 5)
    names = ["norm.weight", "norm.bias"] if centered else ["norm.weight"]
    assert list(module.state_dict()) == names, "the gain of one head, the same for all"
    assert module(x.bfloat16()).dtype == torch.bfloat16
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


def test_qwen_3_normalises_each_head():
    model, seen = uneven("qwen3", dtype=torch.float32), {}
    attention, heads = model.model.layers[1].self_attn, model.config.num_attention_heads
    for head, rows in enumerate(attention.q_proj.weight.data.chunk(heads)):
        rows *= head + 1  # heads as long as each other would have one scale
    for name in ("q_proj", "q_norm"):
        getattr(attention, name).register_forward_hook(lambda *a, name=name: seen.update({name: a[2].detach()}))
    with torch.no_grad():
        model(token_ids(2, 7))
    x, y, norm = seen["q_proj"], seen["q_norm"].reshape(2, 7, -1), attention.q_norm
    got = ng.head_norm(x, heads, norm.weight.detach(), eps=norm.variance_epsilon)
    close(got, y, rounding(y, torch.float32), "Qwen 3's queries", "Another layout of the heads?")
    whole = ng.rms_norm(x, norm.weight.detach().repeat(heads), eps=norm.variance_epsilon)
    assert float((whole - y).abs().max()) > 0.1, "a norm of the whole width passes too"
