"""What parts do to predictions, against models that are really run without them and against columns by hand."""

import math

import numpy as np
import pytest
import torch
from norm_checks import close, draw
from normgeom_lab import reading as removals
from normgeom_lab.common.parts import Effects, head_of, writers
from normgeom_lab.common.tiny import random_model

IDS = torch.tensor([[3, 8, 2, 40, 17, 5], [11, 4, 33, 6, 9, 21]])
EACH = pytest.mark.parametrize("family", ("gpt2", "gptj", "llama"))


def predictions(family="gpt2"):
    return removals.Predictions.of(random_model(family, 0), IDS)


def by_hand(logits):
    """The next token's logit above the mean, one position after the other."""
    return torch.stack(
        [torch.stack([logits[i, t, IDS[i, t + 1]] - logits[i, t].mean() for t in range(1, 5)]) for i in range(2)]
    )


def agree(got, expected, suspects, tol):
    close(got, expected, tol, "compared with an independent way", suspects)


@EACH
def test_positions_are_the_inner_ones(family):
    run = predictions(family)
    with torch.no_grad():
        logits = random_model(family, 0)(IDS).logits
    agree(run.logits, logits[:, [1, 2, 3, 4]], "The first position or the last left in?", tol=0)
    assert torch.equal(run.following, IDS[:, [2, 3, 4, 5]]), "The token itself for the next one?"
    assert all(part.shape == (2, 4, 16) for part in run.parts.values())
    # transformers' RMSNorms compute in float32
    tol = 1e-12 if run.readout.centered else 1e-5 * float(logits.abs().max())
    agree(run.readout.logits(run.stream), run.logits, "Parts of other positions than the logits?", tol=tol)


@EACH
def test_lead_and_gap(family):
    run = predictions(family)
    agree(run.lead(run.logits), by_hand(random_model(family, 0)(IDS).logits), "Another token, or no mean?", tol=1e-12)
    for i in range(2):
        for t in range(4):
            others = run.logits[i, t].clone()
            others[run.following[i, t]] = -math.inf
            assert int(run.rival[i, t]) == int(others.argmax()), "The next token as its own rival? The second best?"
            expected = run.logits[i, t, run.following[i, t]] - others.max()
            agree(run.gap()[i, t], expected, "The other way round?", tol=1e-12)


def test_the_rival_where_the_model_is_right_and_where_it_is_wrong():
    run = predictions()
    logits = torch.zeros(2, 4, 64, dtype=torch.float64)
    logits.scatter_(-1, run.following[..., None], 2.0)
    logits[..., 7] = 1.0
    logits[1, :, 7] = 3.0
    changed = removals.Predictions(run.model, run.ids, run.readout, run.parts, logits)
    assert (changed.rival == 7).all(), "7 is second in the first text and first in the second"
    agree(changed.gap(), torch.tensor([[1.0] * 4, [-1.0] * 4]).double(), "Without its sign?", tol=0)


@EACH
def test_directions_read_logits(family):
    run = predictions(family)
    readout = run.readout
    n = readout.projected(run.stream) / readout.scale(run.stream)
    z = readout.logits(run.stream) - readout.constant
    agree((run.above_mean * n).sum(-1), run.lead(z), "Against another token, or without the mean?", tol=1e-12)
    gap = z.gather(-1, run.following[..., None]) - z.gather(-1, run.rival[..., None])
    agree((run.against_rival * n).sum(-1), gap.squeeze(-1), "The other way round?", tol=1e-12)


@EACH
def test_the_effects_are_those_of_each_part(family):
    run = predictions(family)
    found = run.effects(run.above_mean)
    assert list(found) == list(run.parts)
    for name, e in found.items():
        left = run.readout.logits(run.stream - run.parts[name])
        direct = run.lead(run.readout.logits(run.stream)) - run.lead(left)
        agree(e.removed, direct, "Parts interchanged, another ε, or the other norm?", tol=1e-11)


@EACH
def test_the_total_effect_is_that_of_a_model_without_the_part(family):
    total = predictions(family).total_effects()
    before = by_hand(random_model(family, 0)(IDS).logits)
    for name in total:
        model = random_model(family, 0)
        torch.nn.init.zeros_(writers(model)[name].weight)
        if getattr(writers(model)[name], "bias", None) is not None:
            torch.nn.init.zeros_(writers(model)[name].bias)
        if name == "wte" and model.config.tie_word_embeddings:  # the head keeps its weight
            head_of(model).weight = head_of(random_model(family, 0)).weight
        expected = before - by_hand(model(IDS).logits)
        agree(total[name], expected, f"{name}: the direct effect? Without less with?", tol=1e-10)


def test_the_last_part_acts_directly():
    run = predictions()
    direct = run.effects(run.above_mean)["m2"].removed
    agree(run.total_effects()["m2"], direct, "Nothing comes after the last MLP.", tol=1e-11)


def some_effects():
    return {
        name: Effects(*draw(5, 3, 4, seed=seed, mean=0.5).unbind(0))
        for name, seed in (("wte", 1), ("a1", 2), ("m1", 3))
    }


def test_columns_of_the_answers():
    found = some_effects()
    total = {name: draw(3, 4, seed=9 + i) for i, name in enumerate(found)}
    answers = removals.answers_by_part(found, total)
    assert list(answers.index) == list(found)
    for name, e in found.items():
        row = answers.loc[name]
        frozen, direct, slope = (np.array(v.tolist()) for v in (e.frozen, e.removed, e.slope))
        assert row["share κ"] == pytest.approx(float(np.mean(e.share.tolist()))), "Another field of the effects?"
        assert row["s'/s"] == pytest.approx(float(np.mean(e.ratio.tolist()))), "Another field of the effects?"
        means = [float(np.mean(v)) for v in (frozen, slope, direct, np.array(total[name].tolist()))]
        assert list(row[["frozen", "slope", "direct", "total"]]) == pytest.approx(means), "Columns interchanged?"
        length = np.linalg.norm
        assert row["error of frozen"] == pytest.approx(length(frozen - direct) / length(direct)), "Relative to frozen?"
        assert row["error of slope"] == pytest.approx(length(slope - direct) / length(direct)), "Relative to slope?"
        off = length(direct - np.array(total[name].tolist())) / length(total[name])
        assert row["direct off total"] == pytest.approx(off), "Relative to direct?"


def test_errors_at_some_positions():
    found = some_effects()
    where = torch.tensor([[True, False, True, False], [False, True, True, False], [True, True, False, False]])
    kept = {name: Effects(*(a[where] for a in e)) for name, e in found.items()}
    assert removals.errors_by_part(found, where).equals(removals.errors_by_part(kept))
    assert not removals.errors_by_part(found, ~where).equals(removals.errors_by_part(kept)), "where is not used"


def test_root_mean_squares():
    a, b = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 0.0]])
    assert removals.rms(a) == pytest.approx(math.sqrt(12.5)), "The length, or the mean?"
    assert removals.relative_rms(a, b) == pytest.approx(4 / 3), "In units of the first?"


def test_rank_correlation_of_hand_made_orders():
    up = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert removals.rank_correlation(up, up.exp()) == pytest.approx(1), "Of the values, not of their ranks?"
    assert removals.rank_correlation(up, -up) == pytest.approx(-1)
    # 1 − 6 Σd²/(n(n² − 1)) with d = 1, 1, 0, 0
    assert removals.rank_correlation(up, torch.tensor([[20.0, 10.0], [30.0, 99.0]])) == pytest.approx(1 - 12 / 60)
    # ranks 1½, 1½, 3, 4 beside 1, 2, 3, 4
    assert removals.rank_correlation(torch.tensor([5.0, 5.0, 6.0, 7.0]), up) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


@EACH
def test_fading_against_a_stream_with_less_of_the_part(family):
    run = predictions(family)
    readout, c, x = run.readout, run.parts["m1"], run.stream

    def lead(stream, scale=None):
        return float(run.lead(readout.logits(stream, scale) - readout.constant).mean())

    faded = run.faded("m1", (1.0, 0.4, 0.0))
    assert list(faded.index) == [1.0, 0.4, 0.0] and faded.index.name == "m1"
    near = dict(rel=0, abs=1e-12)
    for kept, row in faded.iterrows():
        stream = x - (1 - kept) * c
        assert row.logit == pytest.approx(lead(stream), **near), "more taken out than said?"
        assert row.frozen == pytest.approx(lead(stream, readout.scale(x)), **near), "the scale not held?"
        assert row.part == pytest.approx(lead(kept * c, readout.scale(stream)), **near), "by the whole stream's scale?"
        assert row.others == pytest.approx(row.logit - row.part, **near)
    step = 1e-6
    slope = (lead(x) - lead(x - step * c)) / step
    assert faded.tangent[1.0] - faded.tangent[0.0] == pytest.approx(slope, rel=1e-3, abs=1e-4), "another's slope?"
    assert faded.tangent[1.0] == pytest.approx(faded.logit[1.0])
    assert [*run.faded("m1").index] == [k / 20 for k in range(20, -1, -1)]


def test_wholes_and_spreads_by_hand():
    run = predictions()
    free = run.lead(run.logits - run.readout.constant)
    square = sum(float(v) ** 2 for v in free.flatten()) / 8
    assert run.sizes()["the logit above the mean"] == pytest.approx(math.sqrt(square)), "with the constant?"
    constant = run.readout.constant
    gaps = run.gap() - constant[run.following] + constant[run.rival]
    gaps = sum(float(v) ** 2 for v in gaps.flatten()) / 8
    assert run.sizes()["the difference"] == pytest.approx(math.sqrt(gaps)), "with the constants?"
    spreads = [float(np.std(z.numpy(), ddof=1)) for z in run.logits.flatten(0, 1)]
    assert run.spreads()["final logits"] == pytest.approx(np.mean(spreads)), "over positions for over tokens?"
    assert run.spreads()["the constant"] == pytest.approx(np.std(run.readout.constant.numpy(), ddof=1))
    answers = removals.answers_by_part(run.effects(run.above_mean), run.total_effects())[["slope", "frozen"]]
    sums = removals.added_up(answers, run)
    assert list(sums.columns) == ["slope", "frozen"]
    assert sums.frozen["all parts"] == pytest.approx(sums.frozen["the logit itself"]), "frozen contributions add up"
    assert sums.slope["all parts"] == pytest.approx(sum(answers.slope)) and math.isnan(sums.slope["the logit itself"])
