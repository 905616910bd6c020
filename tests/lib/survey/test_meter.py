"""The numbers that a survey takes of vectors, and its sums, against numpy; and that a GPU would not wait."""

import math
from itertools import pairwise

import normgeom as ng
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from norm_checks import draw
from normgeom.models.watch import forward
from normgeom.survey.meter import drop_error
from pandas.testing import assert_frame_equal
from pretended_device import DEVICE, Pretended
from survey_truth import assert_rows_equal, directly, dropped, survey, table_of
from tiny_models import tiny, token_ids
from torch import nn


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    degrees=st.floats(5, 175),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_any_cut_of_any_stream(seed, count, cuts, degrees, spread):
    """Batches add up, whatever they hold."""
    angles = torch.deg2rad(draw(count, seed=seed, mean=degrees, scale=spread).clamp(0, 180))
    x = torch.stack([angles.cos(), angles.sin()], dim=-1) * draw(count, 1, seed=seed + 1).exp()
    ends = [0, *sorted(min(cut, count) for cut in cuts), count]
    batches = [x[None, start:stop] for start, stop in pairwise(ends)]
    table = table_of(nn.RMSNorm(2).double(), batches, directions=["uniform"], example_inputs=x[None])
    assert_rows_equal(table.loc["", "in", "uniform", "all"], directly(x, torch.ones(2)), "Divisor n−1?")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("off", [0.0, 1e-6, 1e-3])
def test_angles_near_0_and_180_degrees(off, sign):
    """Where an arc cosine is at its worst."""
    x = sign + off * draw(2, 20, 48)
    net = nn.Sequential(nn.RMSNorm(48)).double()
    got = table_of(net, [x], directions=["uniform"], example_inputs=x).loc["0", "in", "uniform", "all"]
    expected = directly(x.reshape(-1, 48), torch.ones(48))
    assert abs(got.mean_deg - expected["mean_deg"]) < 2e-6 and got.std_deg < expected["std_deg"] + 1e-5


def norm_with(d=40, eps=1e-5, gain=None, bias=None, dtype=torch.float32):
    norm = nn.LayerNorm(d, eps=eps, dtype=dtype)
    norm.weight.data.copy_(draw(d, seed=1) if gain is None else gain)
    norm.bias.data.copy_(draw(d, seed=2) if bias is None else bias)
    return norm


def drop_of(norm, x):
    """The mean drop error behind first positions, of a model that is this norm alone."""
    table = table_of(nn.Sequential(norm), [x], example_inputs=x, directions=["uniform"])
    drop = table.loc[("0", slice(None), "uniform", "rest"), :].drop_error.tolist()
    assert drop[0] == pytest.approx(drop[1], rel=1e-12, nan_ok=True), "one number a norm, beside both sides"
    return drop[0]


NORMS = {
    "random gain and bias": dict(),
    "large ε": dict(eps=1e-1),
    "no ε to speak of": dict(eps=1e-12),
    "no gain, no bias": dict(gain=torch.ones(40), bias=torch.zeros(40)),
    "zero gains": dict(gain=draw(40, seed=1) * (torch.arange(40) % 3 > 0)),
    "one gain only": dict(gain=torch.eye(40)[3]),
    "uneven gains": dict(gain=draw(40, seed=1).exp() ** 3),
}


@pytest.mark.parametrize("mean", [0.0, 1.0, -30.0], ids=lambda mean: f"mean {mean:g}σ")
@pytest.mark.parametrize("scale", [1.0, 1e-2], ids=lambda scale: f"σ {scale:g}")
@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_drop_error_is_the_change_of_the_output(settings, scale, mean):
    """σ = 0.01 makes ε = 0.1 most of the root, and 1e-5 a tenth of it."""
    for dtype, tol in ((torch.float64, 2e-5), (torch.float32, 1e-3)):
        norm = norm_with(**settings, dtype=dtype)
        x = (scale * draw(3, 31, 40, mean=mean, seed=5)).to(dtype)
        expected = dropped(x[:, 1:].reshape(-1, 40), norm.weight, norm.bias, norm.eps).mean()
        assert drop_of(norm, x) == pytest.approx(expected, rel=tol), f"{dtype}. β or γ forgotten, sign of the mean?"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [0.0, 1.0, 1e4])
def test_outputs_that_are_the_bias_alone_are_left_out(bias, dtype):
    """A constant vector becomes β: nothing is left to compare with, and rounding must not be taken for it."""
    norm = norm_with(bias=bias * draw(40, seed=2)).to(dtype)
    x = draw(2, 31, 40, mean=1.0, seed=5).to(dtype)
    x[:, 3], x[1, 4:6] = 0.7, -2.0
    kept = torch.ones(2, 31, dtype=torch.bool)
    kept[:, [0, 3]], kept[1, 4:6] = False, False
    if bias * torch.finfo(dtype).eps < 0.02:
        expected = dropped(x[kept], norm.weight, norm.bias, norm.eps).mean()
        tol = max(1e-3, 10 * (1 + bias) * torch.finfo(dtype).eps)
        assert drop_of(norm, x) == pytest.approx(expected, rel=tol), "a mean over rows that are β alone?"
    for constant in (0.5, 0.7):  # the mean of the second is rounded
        assert math.isnan(drop_of(norm, torch.full_like(x, constant))), "of nothing there is no share"


@pytest.mark.parametrize("bias", [0.0, 1e-3, 1.0, 100.0])
def test_a_gain_that_no_input_meets(bias):
    """γ⊙n = 0, where x varies in coordinates of gain zero alone; what rounding leaves of it has either sign."""
    x = torch.zeros(1, 9, 40)
    x[..., 1], x[..., 2], x[..., 3:] = 2.0, -1.0, 0.25
    x[..., 0] = x[..., 1:].mean(-1)
    for seed in range(8):
        norm = norm_with(gain=torch.eye(40)[0], bias=bias * draw(40, seed=seed))
        assert math.isnan(drop_of(norm, x)), f"β of seed {seed}: relative to nothing"


def test_an_output_that_the_mean_does_not_change():
    """One coordinate is seen, and x there is such that both norms agree: rounding must not leave a negative square."""
    x, gain = draw(300, 40, mean=1.0), torch.eye(40, dtype=torch.float64)[3]
    for _ in range(100):  # x₃ = m/(1 − s/r), a fixed point
        m, r = x.mean(-1), (x.square().mean(-1) + 1e-5).sqrt()
        x[:, 3] = m / (1 - (r.square() - m.square()).sqrt() / r)
    y = ng.layer_norm(x, gain)
    got = drop_error(x.mean(-1), x.norm(dim=-1), (y @ gain, 0 * y[:, 0], y.norm(dim=-1)), (40, 1e-5, 1.0, 0.0, 0.0))
    assert dropped(x, gain, 0 * gain, 1e-5).max() < 1e-9, "no fixed point: no test"
    assert float(got.max()) < 1e-6, f"{got.isnan().sum()} NaN: the root of a square below zero"


@pytest.mark.parametrize("layers", [1, 4])
def test_on_a_device_the_numbers_are_the_same_and_no_norm_adds_a_wait(layers):
    """Begun on the CPU, and moved with the model."""
    batches = [token_ids(2, 9, seed=i) for i in range(3)]
    model = tiny("gpt2", n_layer=layers).double()  # in float64: attention is another chain of operations there
    model.config.use_cache = False  # a cache begins with a tensor that is made of a list
    settings = dict(directions=["uniform", "signs_a"])
    whole, begun = survey(model, batches, **settings), survey(model, batches[:1], **settings)
    with Pretended() as device:
        model.to(DEVICE)
        begun.run(batches[1:2], progress=False)  # the directions are there now
        device.waits.clear()
        forward(model, batches[2])
        alone = len(device.waits)
        device.waits.clear()
        begun._measure(batches[2], whole.digest)
        assert len(device.waits) == alone, f"{device.waits}: a look at values at each norm?"
        assert_frame_equal(begun.table(), whole.table(), rtol=1e-12, atol=1e-11)
