"""Keys, decoders of a norm's output and scales read from it: against hand-made hulls, least squares and bisection."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from norm_checks import draw, rounding
from normgeom.models.twins import twins
from normgeom_lab import irreversibility as lab
from normgeom_lab.common.loop import random_windows, train
from normgeom_lab.common.tiny import gpt2
from tiny_models import tiny, token_ids
from torch import nn


def widest_gaps(points):
    """The widest angle at each point in which there is no other; a corner of the hull has more than half a turn."""
    found = []
    for j, point in enumerate(points):
        others = torch.cat([points[:j], points[j + 1 :]]) - point
        angles = torch.atan2(others[:, 1], others[:, 0]).sort().values
        gaps = torch.diff(angles, append=angles[:1] + 2 * math.pi)
        found.append(gaps.max())
    return torch.stack(found)


@pytest.mark.parametrize("seed", range(2))
def test_keys_of_the_plane_are_the_corners_of_their_hull(seed):
    points = draw(40, 2, seed=seed)
    found, gaps = lab.selectable(points), widest_gaps(points)
    clear = gaps > math.pi + 0.1  # a corner that hardly stands out takes longer than the walk lasts
    assert 3 <= clear.sum() < 20 and found[clear].all(), "Own score not left out?"
    assert not found[gaps < math.pi].any(), "a key in the hull called selectable"


def test_few_keys():
    assert lab.selectable(draw(1, 3).expand(2, 3)).tolist() == [False, False], "of two equal keys neither is above"
    assert lab.selectable(draw(7, 1).exp() * draw(7, 6, seed=1)).all(), "affinely independent keys of any length"


def test_keys_that_do_not_select_themselves_are_found_by_the_walk():
    """A short key between long ones: the key itself as a query prefers another."""
    points = torch.tensor([[0.0, 1.9], [3.0, 3.0], [-3.0, 3.0], [0.0, 7.0]])
    assert (points[0] @ points.T).argmax() != 0
    assert lab.selectable(points).tolist() == [True] * 4, "Only the key itself tried? No walk?"


def test_shares_are_those_of_the_same_draws():
    """With the generator in step, the three kinds of keys by torch's own norms."""
    generator = torch.Generator().manual_seed(3)
    shares = lab.selectable_shares((2, 3), 2, torch.Generator().manual_seed(3))
    for width in (2, 3):
        expected = torch.zeros(3, dtype=torch.float64)
        for _ in range(2):
            sizes = torch.randn(256, 1, generator=generator, dtype=torch.float64).exp()
            x = sizes * torch.randn(256, 768, generator=generator, dtype=torch.float64)
            w = torch.randn(768, width, generator=generator, dtype=torch.float64) / 768**0.5
            y = F.layer_norm(x, (768,), eps=0.0) @ w
            kinds = x @ w, y, y / y.square().mean(-1, keepdim=True).sqrt()
            expected += torch.stack([lab.selectable(k).double().mean() for k in kinds]) / 2
        got = [shares[name][width] for name in ("no norm", "norm, then W", "norm, W, norm")]
        assert got == pytest.approx(expected.tolist()), f"width {width}. Sum for mean? Kinds swapped?"


def by_hand(seen, target):
    """R² of the affine decoder by the normal equations."""
    half = len(seen) // 2
    x = F.pad(seen, (1, 0), value=1.0)
    guess = x[half:] @ torch.linalg.solve(x[:half].T @ x[:half], x[:half].T @ target[:half])
    truth = target[half:]
    return 1 - float((truth - guess).square().sum() / (truth - truth.mean(0)).square().sum())


def test_scores_are_those_of_the_normal_equations():
    seen = draw(61, 4, mean=3.0)
    targets = {"one": draw(61, 1, seed=1) + seen[:, :1], "three": draw(61, 3, seed=2, mean=-2.0) + seen[:, 1:] ** 2}
    scores = lab.held_out_scores(seen, targets)
    assert list(scores) == ["one", "three"]
    for name, target in targets.items():
        bound = 4 * rounding(target.square().sum(), torch.float64, 61)
        assert scores[name] == pytest.approx(by_hand(seen, target), abs=bound), (
            f"{name}: no constant? Fitted to the rows that judge? Targets mixed up? The target's mean left in?"
        )


def test_dependent_columns_do_not_disturb_the_fit():
    """LayerNorm's outputs sum to zero, and a zero gain leaves a column of zeros."""
    x = draw(200, 6)
    seen = (x - x.mean(-1, keepdim=True)) * torch.tensor([1.0, 1, 1, 1, 0, 0], dtype=torch.float64)
    assert lab.held_out_scores(seen, {"t": seen[:, :2]})["t"] == pytest.approx(1, abs=1e-10)


def test_the_random_layer_is_fixed_curved_and_of_the_generators_numbers():
    layer = lab.random_layer(5, 400, torch.Generator().manual_seed(2))
    x = draw(3, 5)
    inside = x @ torch.randn(5, 400, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / math.sqrt(5)
    expected = inside * 0.5 * (1 + torch.erf(inside / math.sqrt(2)))
    assert torch.allclose(layer(x), expected, rtol=0, atol=4 * rounding(expected, torch.float64, 5)), "no √d? No GELU?"


def test_what_is_read_at_a_model_s_norms():
    """Every number again from hooks of the test's own; the model is left as it was."""
    model, batches = tiny("gpt2").train(), [token_ids(6, 9, seed=0), token_ids(4, 9, seed=1)]
    got = lab.read_norms(model, batches)
    assert model.training and not any(m._forward_hooks for m in model.modules()), "mode or hooks left behind"
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(
                lambda m, args, out, name=name: seen.setdefault(name, []).append((args[0], out))
            )
    with torch.no_grad():
        for ids in batches:
            model.eval()(ids)
    assert list(got.index) == list(seen), "each norm by name, in the order of use"
    for name, pairs in seen.items():
        x, y = (torch.cat([t[:, 1:].reshape(-1, 32).double() for t in part]) for part in zip(*pairs, strict=True))
        mean, sigma = x.mean(-1), x.std(-1, correction=0)
        expected = lab.held_out_scores(y, {"mean": mean[:, None], "log σ": sigma.log()[:, None]})
        expected["spread"] = float(mean.std() / sigma.median())
        assert got.loc[name].to_dict() == pytest.approx(expected, abs=1e-9), f"{name}: position 0 kept? d − 1?"


def test_the_twin_is_read_before_and_after_training_on_windows_of_its_seed():
    steps = 12
    text = token_ids(1, 400, seed=0)[0]
    held_out = list(token_ids(8, 8, seed=1).split(4))
    config = gpt2(int(text.max()) + 50, length=8, width=16, layers=1, heads=2)
    got = lab.read_before_and_after(config, 3, text, held_out, steps)
    model, _ = twins(config, 3)
    before = lab.read_norms(model, held_out)
    losses = train(model, random_windows(text, 8, 8, 3), steps, 3e-3, None)
    for step, expected in ((0, before), (steps, lab.read_norms(model, held_out))):
        rows = got.loc[step].drop(columns="loss")
        pd.testing.assert_frame_equal(rows, expected, check_names=False, obj=f"after {step} steps")
    assert got.loc[steps].loss.tolist() == pytest.approx([sum(losses[-10:]) / 10] * 3), "the last ten, not all"


@pytest.mark.parametrize("sigma", [1e-3, 1e-2, 0.3])
def test_the_scale_comes_back_in_float64(sigma):
    """The error is rounding times 1 + σ²/ε (prop-amplification)."""
    error = lab.scale_error(torch.float64, sigma, torch.Generator().manual_seed(0), d=64, rows=50)
    bound = (1 + sigma**2 / 1e-5) * 32 * torch.finfo(torch.float64).eps
    assert error < bound, f"off by {error:.1e}: ε outside the root? ρ for ρ²? d − 1? The drawn σ for the row's own?"


def test_the_error_is_that_of_a_rounded_output():
    """Each row's σ by bisection: the σ whose noiseless ρ is the one that bfloat16 leaves."""
    seed, how = torch.Generator().manual_seed(1), dict(d=16, eps=1e-3, rows=9, given=torch.float32)
    got = lab.scale_error(torch.bfloat16, 0.01, seed, **how)
    x = (0.01 * torch.randn(9, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).float()
    length = F.layer_norm(x, (16,), eps=1e-3).bfloat16().double().square().mean(-1).sqrt()
    low, high = torch.full_like(length, 1e-6), torch.full_like(length, 10.0)
    for _ in range(200):
        middle = (low + high) / 2
        short = middle / torch.sqrt(middle**2 + 1e-3) < length
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    expected = float((low / x.double().std(-1, correction=0) - 1).abs().median())
    assert got == pytest.approx(expected, rel=1e-6), "Output not rounded? Input rounded to the output's format? A mean?"


def test_outputs_too_long_for_any_scale_count_as_infinite():
    """At σ = 300 rounding decides on which side of 1 the length lies; in some draws it is above in most rows."""
    seeds = map(torch.Generator().manual_seed, range(8))
    errors = [lab.scale_error(torch.bfloat16, 300.0, seed, d=8, rows=9) for seed in seeds]
    assert math.inf in errors and not any(map(math.isnan, errors))


def named(axis, label):
    (line,) = [line for line in axis.get_lines() if line.get_label() == label]
    return np.array(line.get_data(), dtype=float)


@pytest.mark.parametrize(("own", "verdict"), [(1.0, "selectable"), (0.1, "not selectable"), (1e-3, "not selectable")])
def test_a_key_that_sinks_is_said_to(own, verdict):
    """One token at angle 0, six around it with σ = 1; their hull's edge lies at cos 30° of their distance."""
    turn = torch.arange(6, dtype=torch.float64) * math.pi / 3 + math.pi / 6
    around = torch.cat([torch.tensor([[own, 0.0]]).double(), torch.stack([turn.cos(), turn.sin()], -1)])
    x = 3**0.5 * around @ F.normalize(torch.tensor([[1.0, -1, 0], [1, 1, -2]]).double(), dim=-1)
    figure, alt = lab.sinking_key(x, 1e-2)
    length, edge = F.layer_norm(x, (3,), eps=1e-2).norm(dim=-1)[:2].tolist()
    assert figure.axes[0].get_title() == verdict and f"This key is {verdict}: by its best query of length 1" in alt
    assert named(figure.axes[0], f"σ = {own:.2g}")[0] == pytest.approx(length, rel=1e-9)
    assert len(named(figure.axes[0], "others, σ = 1")[0]) == 6, "others of one σ called longer than it?"
    assert f"one at a distance of {length:.2f}" in alt
    if verdict == "selectable":  # the query along the key is the best, as the others are symmetric
        assert f"its score is {length - math.cos(math.pi / 6) * edge:.2f} above the highest" in alt
    assert lab.sinking_key(x + 5, 1e-2)[1] == alt, "the mean of the tokens matters"


def test_errors_of_the_scale_are_marked_beside_their_lines():
    found = {"float16": [0.001, 0.01, 0.2], "float64": [1e-16, 1e-15, 1e-14]}
    predicted = {"float16": [0.002, 0.02, 0.2], "float64": [2e-16, 2e-15, 2e-14]}
    figure, alt = lab.errors_of_scale([0.1, 1.0, 10.0], found, predicted, eps=0.04)
    lines = [list(line.get_ydata()) for line in figure.axes[0].get_lines()[:4]]
    assert 1 in figure.axes[0].get_yticks(), "where an error means that nothing is known"
    assert lines == [predicted["float16"], found["float16"], predicted["float64"], found["float64"]]
    assert "float16 passes 10 % between σ = 1 and 10" in alt and "float64 goes from 1e-16 to 1e-14 at σ = 10" in alt
