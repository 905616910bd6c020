"""What parts and heads do to predictions: against models that are run without them, and columns by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, draw
from normgeom.training.twins import Size, twins
from normgeom_lab import reading as lab
from normgeom_lab.common.loop import train
from normgeom_lab.common.parts import Effects, Predictions, components
from normgeom_lab.common.stream import head_of, writers
from normgeom_lab.common.tiny import random_model
from torch import nn

IDS = torch.tensor([[3, 8, 2, 40, 17, 5], [11, 4, 33, 6, 9, 21]])


def agree(got, expected, suspects, tol=1e-12):
    close(got, expected, tol, "compared with an independent way", suspects)


@torch.no_grad()
def logits_of(model):
    return model(IDS).logits


def by_hand(logits):
    """The next token's logit above the mean, one inner position after the other."""
    rows = [[logits[i, t, IDS[i, t + 1]] - logits[i, t].mean() for t in range(1, 5)] for i in range(2)]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.fixture(scope="module", params=["gpt2", "gptj", "llama"])
def case(request):
    """A model of a family and its predictions; tests do not change either."""
    model = random_model(request.param, 0)
    return SimpleNamespace(family=request.param, model=model, run=Predictions.of(model, IDS))


@pytest.fixture(scope="module")
def run():
    return Predictions.of(random_model("gpt2", 0), IDS)


# predictions


def test_predictions_are_of_inner_positions(case):
    run, logits = case.run, logits_of(case.model)
    agree(run.logits, logits[:, [1, 2, 3, 4]], "The first position or the last left in?", tol=0)
    assert torch.equal(run.following, IDS[:, [2, 3, 4, 5]]), "The token itself for the next one?"
    # transformers' RMSNorms compute in float32
    tol = 1e-12 if run.readout.centered else 1e-5 * float(logits.abs().max())
    agree(run.readout.logits(run.stream), run.logits, "Parts of other positions than the logits?", tol=tol)
    agree(run.lead(run.logits), by_hand(logits), "Another token, or no mean?")
    for i in range(2):
        for t in range(4):
            others = run.logits[i, t].clone()
            others[run.following[i, t]] = -math.inf
            assert int(run.rival[i, t]) == int(others.argmax()), "The next token as its own rival? The second best?"
            agree(run.gap()[i, t], run.logits[i, t, run.following[i, t]] - others.max(), "The other way round?")


def test_the_total_effect_is_that_of_a_model_without_the_part(case):
    total, before = case.run.total_effects(), by_hand(logits_of(case.model))
    for name in total:
        model = random_model(case.family, 0)
        for p in writers(model)[name].parameters():
            nn.init.zeros_(p)
        if name == "wte" and model.config.tie_word_embeddings:  # the head keeps its weight
            head_of(model).weight = head_of(case.model).weight
        expected = before - by_hand(logits_of(model))
        agree(total[name], expected, f"{name}: the direct effect? Without less with?", tol=1e-10)


def test_fading_against_a_stream_with_less_of_the_part(case):
    run = case.run
    readout, c, x = run.readout, run.parts["m1"], run.stream

    def lead(stream, scale=None):
        return float(run.lead(readout.logits(stream, scale) - readout.constant).mean())

    faded, near = run.faded("m1"), dict(rel=0, abs=1e-12)
    assert list(faded.index) == [k / 20 for k in range(20, -1, -1)] and faded.index.name == "m1"
    for kept, row in faded.loc[[1.0, 0.4, 0.0]].iterrows():
        stream = x - (1 - kept) * c
        assert row.logit == pytest.approx(lead(stream), **near), "more taken out than said?"
        assert row.frozen == pytest.approx(lead(stream, readout.scale(x)), **near), "the scale not held?"
        assert row.part == pytest.approx(lead(kept * c, readout.scale(stream)), **near), "by the whole stream's scale?"
        assert row.others == pytest.approx(row.logit - row.part, **near)
    slope = (lead(x) - lead(x - 1e-6 * c)) / 1e-6
    assert faded.tangent[1.0] - faded.tangent[0.0] == pytest.approx(slope, rel=1e-3, abs=1e-4), "another's slope?"
    assert faded.tangent[1.0] == pytest.approx(faded.logit[1.0])


def test_wholes_and_spreads_by_hand(run):
    constant = run.readout.constant
    free = run.lead(run.logits - constant)
    gaps = run.gap() - constant[run.following] + constant[run.rival]
    roots = [math.sqrt(sum(float(v) ** 2 for v in values.flatten()) / 8) for values in (free, gaps)]
    assert list(run.sizes().values()) == pytest.approx(roots), "with the constants?"
    spreads = [float(np.std(z.numpy(), ddof=1)) for z in run.logits.flatten(0, 1)]
    assert run.spreads()["final logits"] == pytest.approx(np.mean(spreads)), "over positions for over tokens?"
    assert run.spreads()["the constant"] == pytest.approx(np.std(constant.numpy(), ddof=1))
    answers = lab.answers_by_part(run.effects(run.above_mean), run.total_effects())[["slope", "frozen"]]
    sums = lab.added_up(answers, run)
    assert list(sums.columns) == ["slope", "frozen"]
    assert sums.frozen["all parts"] == pytest.approx(sums.frozen["the logit itself"]), "frozen contributions add up"
    assert sums.slope["all parts"] == pytest.approx(sum(answers.slope)) and math.isnan(sums.slope["the logit itself"])


# columns


@pytest.fixture
def some_effects():
    return {name: Effects(*draw(5, 3, 4, seed=i, mean=0.5).unbind(0)) for i, name in enumerate(("wte", "a1", "m1"))}


def test_columns_of_the_answers(some_effects):
    total = {name: draw(3, 4, seed=9 + i) for i, name in enumerate(some_effects)}
    answers, length = lab.answers_by_part(some_effects, total), np.linalg.norm
    assert list(answers.index) == list(some_effects)
    for name, e in some_effects.items():
        row = answers.loc[name]
        frozen, direct, slope, of_all = (v.numpy() for v in (e.frozen, e.removed, e.slope, total[name]))
        means = [np.mean(v) for v in (e.share.numpy(), frozen, slope, direct, of_all, e.ratio.numpy())]
        columns = ["share κ", "frozen", "slope", "direct", "total", "s'/s"]
        assert list(row[columns]) == pytest.approx(means), "Columns interchanged?"
        assert row["error of frozen"] == pytest.approx(length(frozen - direct) / length(direct)), "Relative to frozen?"
        assert row["error of slope"] == pytest.approx(length(slope - direct) / length(direct)), "Relative to slope?"
        ranks = np.corrcoef(*(v.flatten().argsort().argsort() for v in (frozen, direct)))[0, 1]
        assert row["rank correlation"] == pytest.approx(ranks), "Of values, not of ranks?"
        assert row["direct off total"] == pytest.approx(length(direct - of_all) / length(of_all)), "Relative to direct?"


def test_errors_at_some_positions(some_effects):
    where = torch.tensor([[True, False, True, False], [False, True, True, False], [True, True, False, False]])
    kept = {name: Effects(*(a[where] for a in e)) for name, e in some_effects.items()}
    assert lab.errors_by_part(some_effects, where).equals(lab.errors_by_part(kept))
    assert not lab.errors_by_part(some_effects, ~where).equals(lab.errors_by_part(kept)), "where is not used"


# the logit lens


@pytest.mark.parametrize("blocks", (0, 1, 2))
def test_a_lens_with_its_own_scale_is_the_model_cut_off_there(run, blocks):
    model = random_model("gpt2", 0)
    prediction = logits_of(model)[:, 1:-1]
    model.transformer.h = nn.ModuleList(list(model.transformer.h)[:blocks])
    cut = logits_of(model)[:, 1:-1]
    row = lab.lenses(run).loc[f"m{blocks}" if blocks else "wpe"]
    log_p, log_q = (z.log_softmax(-1).flatten(0, 1) for z in (prediction, cut))
    expected = float(F.kl_div(log_q, log_p, reduction="batchmean", log_target=True))
    assert row["KL, own scale / nats"] == pytest.approx(expected, abs=1e-12), "The stream before the part? The scale?"
    assert row["first choice right, own"] == float((cut.argmax(-1) == prediction.argmax(-1)).double().mean())


def test_a_lens_with_the_final_scale_is_affine_in_the_stream(run):
    """W_U (γ ⊙ Πh/s + β), by hand; behind the last part it is the model."""
    table, x, h = lab.lenses(run), run.stream, 0
    norm, head = run.model.transformer.ln_f, run.model.lm_head.weight
    spread = lambda v: (v.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()  # noqa: E731
    for name, part in run.parts.items():
        h, row = h + part, table.loc[name]
        own, final = (
            (((h - h.mean(-1, keepdim=True)) / s * norm.weight + norm.bias) @ head.T).detach()
            for s in (spread(h), spread(x))
        )
        assert row["scale"] == pytest.approx(float(spread(h).mean()), rel=1e-10), "The final scale shown?"
        kl = torch.distributions.kl_divergence(
            *(torch.distributions.Categorical(logits=z) for z in (run.logits, final))
        )
        assert row["KL, final scale / nats"] == pytest.approx(float(kl.mean()), rel=1e-8, abs=1e-12), "Its own scale?"
        same = {"first choice right, final": (final, run.logits), "both choose the same": (own, final)}
        for column, (a, b) in same.items():
            assert row[column] == float((a.argmax(-1) == b.argmax(-1)).double().mean()), column
    assert row["KL, own scale / nats"] < 1e-12 and row["both choose the same"] == 1


# attention heads


@pytest.mark.parametrize("family", ("gpt2", "opt", "gpt_neox", "gptj", "llama"))
def test_a_head_is_what_a_model_without_it_lacks(family):
    model = random_model(family, 0)
    writes, parts, attention = lab.head_writes(model, IDS), components(model, IDS), writers(model)["a2"]
    assert list(writes) == ["1.1", "1.2", "2.1", "2.2"], "Blocks and heads count from 1."
    bias = getattr(attention, "bias", None)
    total = writes["2.1"] + writes["2.2"] + (0 if bias is None else bias.detach())
    agree(total, parts["a2"], "The bias in every head? Heads of another block?")
    with torch.no_grad():
        (attention.weight[:8] if family == "gpt2" else attention.weight[:, :8]).zero_()
    agree(writes["2.1"], parts["a2"] - components(model, IDS)["a2"], "Heads interchanged? Rows for columns?")


@pytest.mark.parametrize("family", ("gpt2", "llama"))
def test_moves_of_the_scale_by_hand(family):
    model = random_model(family, 0)
    run, parts = Predictions.of(model, IDS), components(model, IDS)
    got, eps = lab.scale_moves(run), run.readout.eps

    def scale(x):
        square = x.var(-1, correction=0) if family == "gpt2" else x.square().mean(-1)
        return torch.sqrt(square[:, 1:-1] + eps)

    behind, names, x = {"1": ("a1", "m1", "a2", "m2"), "2": ("a2", "m2")}, list(parts), sum(parts.values())
    for head, c in lab.head_writes(model, IDS).items():
        streams = [sum(parts[name] for name in names[: names.index(last) + 1]) for last in behind[head[0]]]
        moves = [(scale(stream - c) / scale(stream) - 1).abs() for stream in streams]
        means, row = [float(move.mean()) for move in moves], got.loc[head]
        expected = [means[0], means[-1], max(means), max(float(move.max()) for move in moves)]
        shown = list(row[["next norm", "final norm", "largest", "one position"]])
        assert shown == pytest.approx(expected, rel=1e-9), "Another stream? With the first position? Signs that cancel?"
        read = lambda v, *scale: run.lead(run.readout.logits(v, *scale)[:, 1:-1])  # noqa: E731
        frozen, direct = (read(x) - read(x - c, *held) for held in ((run.readout.scale(x),), ()))
        off = float((frozen - direct).norm() / direct.norm())
        assert row["error of frozen"] == pytest.approx(off, rel=1e-8), "Of another head, or of the slope?"


# a model of bytes


def test_a_twin_is_trained_on_all_bytes_but_the_last(monkeypatch):
    monkeypatch.setattr(lab.experiments, "HELD_OUT", 60)
    size = Size(layers=1, width=16, heads=2, lr=1e-2, steps=12, batch=4, length=8)
    made = lab.train_on_bytes(size, "abcd" * 30 + "xyz" * 20, seed=3)
    assert bytes(made.held_out.tolist()).decode() == "xyz" * 20
    reference, _ = twins(size.config(256), 3)
    for a, b in zip(made.untrained.parameters(), reference.parameters(), strict=True):
        assert torch.equal(a, b), "Another seed, or the trained model twice?"
    text, generator = torch.tensor(list(b"abcd" * 30)), torch.Generator().manual_seed(3)
    starts = [torch.randint(len(text) - 7, (4, 1), generator=generator) for _ in range(12)]
    losses = train(reference, (text[s + torch.arange(8)] for s in starts), 12, 1e-2, description=None)
    assert made.losses == pytest.approx(losses, rel=1e-4), "Other batches, another rate, or held-out bytes?"
    assert not made.model.training and not made.untrained.training
