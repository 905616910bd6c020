"""The numbers of a table against float64 on stored activations: far from the origin, in 16 bits, without the mean."""

import math

import normgeom as ng
import numpy as np
import pytest
import torch
from norm_checks import draw
from normgeom.survey.vectors import drop_error, project
from survey_truth import COLUMNS, assert_rows_equal, direction, directly, dropped, stored, survey, table_of
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FAMILIES = ("gpt2", "llama", "bert", "t5")
# of drop_error, relative: what the rounding of the norm's own output leaves; the rest of the table is exact
OUTPUT_ROUNDED = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 3e-3}


def far_away(family, mean):
    """A model whose norms have random gains and see vectors with ``mean`` standard deviations of mean."""
    model = tiny(family)
    norms = [site.module for site in ng.find_norms(model)]
    randomise_norms(model, norms)
    if mean:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1e-2 if p.dim() > 1 else 1)  # sublayers add little to what they read
            embedding = model.get_input_embeddings().weight
            embedding.copy_(mean + draw(*embedding.shape, seed=3))
            for norm in norms:  # where they stand behind the sum, the next reads what they put out
                norm.weight.copy_(1 + 0.1 * norm.weight)
                if getattr(norm, "bias", None) is not None:
                    norm.bias.copy_(mean + 0.1 * norm.bias)
    return model


def batches(family):
    given = [token_ids(3, 12, seed=i) for i in range(2)]
    if family != "t5":
        return given
    return [dict(input_ids=ids, decoder_input_ids=token_ids(3, 12, seed=7 + i)) for i, ids in enumerate(given)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [0, 30], ids=lambda mean: f"mean {mean}σ")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_of_the_table(family, mean, dtype):
    """To 1e-9 degrees of the vectors as they are, in whichever dtype that is."""
    model, given = far_away(family, mean).to(DTYPES[dtype]), batches(family)
    sites = {site.name: site for site in ng.find_norms(model)}
    kept = {
        name: [torch.cat(xs) for xs in zip(*pairs, strict=True)] for name, pairs in stored(model, sites, given).items()
    }
    for name, (x, _) in kept.items():
        x = x.double()
        ratio = float((x.mean(-1) / x.std(-1, correction=0)).abs().median())
        assert not mean or 25 < ratio < 35, f"{name}: a mean of {ratio:.1f}σ is no test"
    table = table_of(model, given, directions=["uniform", "random_a"])
    vectors = {"uniform": torch.ones(32), "random_a": direction("random_a", 32, 0)}
    for (name, side, of, positions), got in table.iterrows():
        rows, what = kept[name][side == "out"], f"{name}, {side}, {of}, {positions}"
        chosen = {"first": slice(0, 1), "rest": slice(1, None), "all": slice(None)}[positions]
        assert_rows_equal(got, directly(rows[:, chosen].reshape(-1, 32), vectors[of]), 1e-9, what)
        if sites[name].kind == "rms":
            assert math.isnan(got.drop_error), f"{what}: RMSNorm subtracts no mean"
        else:
            norm, x = sites[name].module, kept[name][0][:, chosen].reshape(-1, 32)
            expected = dropped(x, norm.weight, norm.bias, norm.eps).mean()
            assert got.drop_error == pytest.approx(expected, rel=OUTPUT_ROUNDED[dtype]), f"{what}: drop_error"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("off", [0.0, 1e-6, 1e-3])
def test_angles_near_0_and_180_degrees(off, sign):
    """Where an arc cosine is at its worst."""
    x = sign + off * draw(2, 20, 48)
    net = nn.Sequential(nn.RMSNorm(48)).double()
    got = table_of(net, [x], directions=["uniform"], example_inputs=x).loc["0", "in", "uniform", "all"]
    expected = directly(x.reshape(-1, 48), torch.ones(48))
    assert abs(got.mean_deg - expected["mean_deg"]) < 2e-6 and got.std_deg < expected["std_deg"] + 2e-6


@pytest.mark.parametrize("d", [3, 64])
def test_vectors_are_not_mixed_where_blocks_end(monkeypatch, d):
    """Blocks of a few rows, the last one shorter, give what one block gives."""
    x, columns = draw(7, 5, d, mean=2.0, dtype=torch.float32), draw(4, d, seed=1)
    for entries in (1, 4 * d, 2**20):
        monkeypatch.setattr("normgeom.survey.vectors._BLOCK", {"cpu": entries})
        products, lengths, largest = project(x, columns)
        rows = x.reshape(-1, d).double().numpy()
        assert np.allclose(products, columns.numpy() @ rows.T, rtol=0, atol=1e-12), "products"
        assert np.allclose(lengths, np.linalg.norm(rows, axis=-1), rtol=1e-14), "lengths"
        assert np.array_equal(largest, np.abs(rows).max(-1)), "largest |entry|: a negative one?"
        assert [t.dtype for t in (products, lengths, largest)] == [torch.float64, torch.float64, x.dtype]


def test_the_share_of_a_massive_coordinate():
    """Also a negative one, and not the coordinate that is largest on average."""
    x = torch.ones(1, 4, 10)
    x[0, 1, 3], x[0, 2, 7], x[0, 3] = 30.0, -30.0, 0.0
    x[0, 3, 5] = -2.0
    table = table_of(nn.Sequential(nn.RMSNorm(10)), [x], directions=["uniform"], example_inputs=x)
    share = 900 / 909
    assert table.loc["0", "in", "uniform", "first"].top_share == pytest.approx(0.1, abs=1e-15)
    assert table.loc["0", "in", "uniform", "rest"].top_share == pytest.approx((2 * share + 1) / 3, abs=1e-12)
    assert table.loc["0", "in", "uniform", "all"].top_share == pytest.approx((0.1 + 2 * share + 1) / 4, abs=1e-12)


def norm_with(d=40, eps=1e-5, gain=None, bias=None, dtype=torch.float32):
    norm = nn.LayerNorm(d, eps=eps, dtype=dtype)
    norm.weight.data.copy_(draw(d, seed=1) if gain is None else gain)
    norm.bias.data.copy_(draw(d, seed=2) if bias is None else bias)
    return norm


def rest_of(norm, x, **settings):
    """The rows of the table that have no first position, of a model that is this norm alone."""
    table = table_of(nn.Sequential(norm), [x], example_inputs=x, directions=["uniform"], **settings)
    return table.loc[("0", slice(None), "uniform", "rest"), :].droplevel([0, 2, 3])


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
        got = rest_of(norm, x).drop_error
        assert got["in"] == got["out"], "one number a norm, beside both sides"
        assert got["in"] == pytest.approx(expected, rel=tol), f"{dtype}. ε outside, β or γ forgotten, sign of the mean?"


@pytest.mark.parametrize("size", [30, 1e3])
def test_drop_error_beside_a_huge_bias(size):
    """Lengths are taken from outputs in which β outweighs γ⊙n: to what their rounding leaves."""
    norm, x = norm_with(bias=size * (1 + draw(40, seed=2).abs())), draw(2, 31, 40, mean=1.0, dtype=torch.float32)
    expected = dropped(x[:, 1:].reshape(-1, 40), norm.weight, norm.bias, norm.eps).mean()
    assert rest_of(norm, x).drop_error["in"] == pytest.approx(expected, rel=10 * size * 2**-23), "β not taken off?"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [0.0, 1.0, 1e4])
def test_outputs_that_are_the_bias_alone_are_left_out(bias, dtype):
    """A constant vector becomes β: nothing is left to compare with, and rounding must not be taken for it."""
    norm = norm_with(bias=bias * draw(40, seed=2)).to(dtype)
    x = draw(2, 31, 40, mean=1.0, seed=5).to(dtype)
    x[:, 3], x[1, 4:6] = 0.7, -2.0
    drop = rest_of(norm, x).drop_error["in"]
    kept = torch.ones(2, 31, dtype=torch.bool)
    kept[:, [0, 3]], kept[1, 4:6] = False, False
    expected = dropped(x[kept], norm.weight, norm.bias, norm.eps).mean()
    if bias * torch.finfo(dtype).eps < 0.02:
        tol = max(1e-3, 10 * (1 + bias) * torch.finfo(dtype).eps)
        assert drop == pytest.approx(expected, rel=tol), f"{drop}: a mean over rows that are β alone?"
    for constant in (0.5, 0.7):  # the mean of the second is rounded
        alone = rest_of(norm, torch.full_like(x, constant)).drop_error["in"]
        assert math.isnan(alone), f"{alone} at {constant}: of nothing there is no share"


@pytest.mark.parametrize("bias", [0.0, 1e-3, 1.0, 100.0])
def test_a_gain_that_no_input_meets(bias):
    """γ⊙n = 0, where x varies in coordinates of gain zero alone; what rounding leaves of it has either sign."""
    x = torch.zeros(1, 9, 40)
    x[..., 1], x[..., 2], x[..., 3:] = 2.0, -1.0, 0.25
    x[..., 0] = x[..., 1:].mean(-1)
    for seed in range(8):
        norm = norm_with(gain=torch.eye(40)[0], bias=bias * draw(40, seed=seed))
        drop = rest_of(norm, x).drop_error["in"]
        assert math.isnan(drop), f"{drop}, β of seed {seed}: relative to nothing"


def test_an_output_that_the_mean_does_not_change():
    """One coordinate is seen, and x there is such that both norms agree: rounding must not leave a negative square."""
    x, gain = draw(300, 40, mean=1.0), torch.eye(40, dtype=torch.float64)[3]
    for _ in range(100):  # x₃ = m/(1 − s/r), a fixed point
        m, r = x.mean(-1), (x.square().mean(-1) + 1e-5).sqrt()
        x[:, 3] = m / (1 - (r.square() - m.square()).sqrt() / r)
    y = ng.layer_norm(x, gain)
    products, lengths, _ = project(y, torch.stack([gain, 0 * gain]))
    got = drop_error(x.mean(-1), x.norm(dim=-1), (*products, lengths), (40, 1e-5, 1.0, 0.0, 0.0))
    assert dropped(x, gain, 0 * gain, 1e-5).max() < 1e-9, "no fixed point: no test"
    assert float(got.max()) < 1e-6, f"{got.isnan().sum()} NaN: the root of a square below zero"


def test_drop_error_of_rms_and_of_gains_for_each_head():
    """Cohere's LayerNorms of queries and keys have a gain for each head."""
    cohere = tiny("cohere_qk")
    sites = {site.name: site for site in ng.find_norms(cohere)}
    randomise_norms(cohere, [site.module for site in sites.values()])
    result = survey(cohere, [token_ids(2, 9)])
    assert list(result.table().columns) == COLUMNS
    per_head = {site.name for site in ng.find_norms(cohere) if site.weight.dim() > 1}
    assert len(per_head) == 4 and {sites[name].kind for name in per_head} == {"layer"}
    for name, drop in result.table().groupby("site").drop_error:
        assert drop.isna().all() if name in per_head else drop.notna().all(), f"{name}: {drop.iloc[0]}"
