"""What a GPU runs, on tensors of a CPU: torch's fused kernels between a widening and one rounding."""

from itertools import product

import norm_checks
import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from norm_checks import MIXED, close, draw, misrounded, mixed, rounding, true_layer_norm, true_rms_norm
from normgeom.norms import kernels
from normgeom.norms.formula import wide_dtype
from normgeom.norms.heads import head_norm
from pretended_device import DEVICE, Pretended
from torch import bfloat16, float16, float32

NORMS = {"layer_norm": (ng.layer_norm, true_layer_norm), "rms_norm": (ng.rms_norm, true_rms_norm)}
BOTH = pytest.mark.parametrize(("norm", "truth"), NORMS.values(), ids=NORMS)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The public functions choose as they do there."""
    monkeypatch.setattr(kernels, "normalize", lambda *args, **kwargs: None)
    eager = lambda *args, **kwargs: None if kernels._transformed() else kernels.fused(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(kernels, "on_cuda", eager)


def rounded_early(x, gain, bias, eps, centered):
    """The near miss: torch's kernel in the input's dtype, gain and bias behind it."""
    norm = F.layer_norm if centered else F.rms_norm
    y = norm(x.float(), x.shape[-1:], eps=eps).to(x.dtype)
    return y.mul(1 if gain is None else gain).add(0 if bias is None else bias).to(x.dtype)


@BOTH
def test_every_check_of_the_norms(norm, truth, as_on_a_gpu):
    """But the one of means that a second centring takes away."""
    checks = [check for check in norm_checks.CHECKS if check is not norm_checks.huge_mean or norm is ng.rms_norm]
    assert norm_checks.failures(norm, truth, checks) == {}


@BOTH
@pytest.mark.parametrize("dtypes", [of for of in MIXED if of[0].itemsize == 2], ids=str)
def test_rounding_before_the_gain_would_be_seen(norm, truth, dtypes):
    x, gain, bias = mixed(dtypes)
    exact = truth(*(None if t is None else t.double() for t in (x, gain, bias)), 1e-5)
    assert misrounded(rounded_early(x, gain, bias, 1e-5, norm is ng.layer_norm), exact) > 0.1


@BOTH
@pytest.mark.parametrize("dtypes", MIXED, ids=str)
def test_gradients_have_the_dtypes_of_what_they_are_by(norm, truth, dtypes, as_on_a_gpu):
    inputs, cotangent = mixed(dtypes), draw(16, 256, seed=7, dtype=dtypes[0])
    there = [i for i, t in enumerate(inputs) if t is not None]
    found = []
    for function, convert in ((norm, torch.Tensor.detach), (truth, torch.Tensor.double)):
        leaves = [None if t is None else convert(t).clone().requires_grad_() for t in inputs]
        found.append(torch.autograd.grad(function(*leaves, 1e-5), [leaves[i] for i in there], convert(cotangent)))
    for i, got, right in zip(there, *found, strict=True):
        assert got.dtype == inputs[i].dtype
        coarser = max(inputs[i].dtype, wide_dtype(inputs[0]), key=lambda t: torch.finfo(t).eps)
        close(got, right, rounding(right, coarser, terms=16 + 256), f"by {('x', 'gain', 'bias')[i]}", "Rounded early?")


@BOTH
def test_derivatives_of_every_order(norm, truth, as_on_a_gpu):
    norm_checks.higher_derivatives(norm, truth)


@pytest.mark.parametrize("dtype", [bfloat16, float16])
def test_one_is_added_to_the_weight_before_any_rounding(dtype, as_on_a_gpu):
    """Gemma's gain: in sixteen bits 1 + w has lost digits of w."""
    x, weight = draw(16, 256, dtype=dtype), draw(256, seed=1, scale=0.1, dtype=dtype)
    exact = true_rms_norm(x.double(), 1 + weight.double())
    assert misrounded(ng.rms_norm(x, weight, unit_offset=True), exact) < 0.01
    assert misrounded(ng.rms_norm(x, 1 + weight), exact) > 0.1


def test_eight_bits(as_on_a_gpu):
    x = draw(4, 64).to(torch.float8_e4m3fn)
    for norm, truth in NORMS.values():
        assert misrounded(norm(x), truth(x.double())) < 0.01


def test_three_kernels():
    x, gain = draw(4, 8, dtype=bfloat16), draw(8, dtype=float32)
    with Pretended() as device:
        x, gain = x.to(DEVICE), gain.to(DEVICE)
        device.ran.clear()
        kernels.fused(x, gain, None, 1e-5, centered=True)
        assert device.ran == ["aten::_to_copy", "aten::native_layer_norm", "aten::_to_copy"]
        device.ran.clear()
        kernels.fused(x, x[0], x[1], 1e-5, centered=True)
        assert device.ran.count("aten::_to_copy") == 0, "one kernel does it all"


def test_tensors_of_the_cpu_are_left_to_it():
    assert kernels.on_cuda(draw(3, 4), draw(4), None, 1e-5, centered=True) is None


WAYS = {
    "fused LayerNorm": lambda x, w, b: kernels.fused(x, w, b, 1e-5, True),
    "fused RMSNorm": lambda x, w, b: kernels.fused(x, w, b, 1e-5, False),
    "formula, LayerNorm": ng.layer_norm,
    "formula, RMSNorm": ng.rms_norm,
    "Gemma": lambda x, w, b: ng.rms_norm(x, w, b, unit_offset=True),
    "heads": lambda x, w, b: head_norm(x, 2, w[:4], b[:4]),
}


def waits(way, dtypes):
    """What the host would wait for in a forward pass, a backward pass and one through that."""
    inputs = draw(3, 8, dtype=dtypes[0]), *(draw(8, seed=i, dtype=dtypes[i]) for i in (1, 2))
    with Pretended() as device:
        leaves = [t.to(DEVICE, non_blocking=True).requires_grad_() for t in inputs]
        y = way(*leaves)
        first = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True)
        torch.autograd.grad(sum(t.square().sum() for t in first), leaves)
        with torch.no_grad():
            way(*leaves)
    return device.waits


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("dtypes", list(product([bfloat16, float32], repeat=3)), ids=str)
def test_the_host_waits_for_nothing(way, dtypes):
    assert waits(way, dtypes) == []


def test_what_looks_at_a_number_is_seen_to_wait():
    """What the CPU runs decides by the largest mean."""
    near = lambda x, w, b: kernels._if_near(x, w, b, 1e-5)  # noqa: E731
    assert set(waits(near, (float32,) * 3)) == {"aten::_local_scalar_dense"}
