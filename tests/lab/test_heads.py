"""Attention heads against torch's attention, against models that lack one, and their moves of the scale by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from norm_checks import close
from normgeom.checks import Draws
from normgeom_lab import reading as heads
from normgeom_lab.common.parts import Predictions, components, drawn_case, writers
from normgeom_lab.common.tiny import random_model

IDS = torch.tensor([[3, 8, 2, 40, 17, 5], [11, 4, 33, 6, 9, 21]])
EACH = pytest.mark.parametrize("family", ("gpt2", "opt", "gpt_neox", "gptj", "llama"))


def agree(got, expected, suspects, tol=1e-12):
    close(got, expected, tol, "compared with an independent way", suspects)


@EACH
def test_heads_and_bias_add_up_to_the_attention(family):
    model = random_model(family, 0)
    writes, parts = heads.head_writes(model, IDS), components(model, IDS)
    assert list(writes) == ["1.1", "1.2", "2.1", "2.2"], "Blocks and heads count from 1."
    for block in (1, 2):
        bias = getattr(writers(model)[f"a{block}"], "bias", None)
        total = writes[f"{block}.1"] + writes[f"{block}.2"] + (0 if bias is None else bias.detach())
        agree(total, parts[f"a{block}"], "The bias in every head? Heads of another block?")


@EACH
@pytest.mark.parametrize("head", (1, 2))
def test_a_head_is_what_a_model_without_it_lacks(family, head):
    model = random_model(family, 0)
    write, before = heads.head_writes(model, IDS)[f"2.{head}"], components(model, IDS)["a2"]
    weight, own = writers(model)["a2"].weight, slice(8 * head - 8, 8 * head)
    with torch.no_grad():
        (weight[own] if family == "gpt2" else weight[:, own]).zero_()
    agree(write, before - components(model, IDS)["a2"], "Heads interchanged? Rows for columns?")


def test_heads_of_a_gpt2_against_torchs_attention():
    for h in heads.drawn_heads(Draws(4), IDS):
        norm = F.layer_norm if h.centered else F.rms_norm
        y = norm(h.x, h.x.shape[-1:], h.gain, eps=h.eps) + h.bias
        q, k, v = (y @ W.T + b for W, b in ((h.query, h.query_bias), (h.key, h.key_bias), (h.value, h.value_bias)))
        seen = F.scaled_dot_product_attention(q, k, torch.eye(6).double().expand(2, 6, 6), is_causal=True)
        agree(h.pattern, seen, "Queries for keys? Another head, another norm?")
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        agree(h.write, out @ h.output.T, "Columns of another head?")


def test_drawn_heads_are_many_and_repeat():
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    found, again = (heads.drawn_heads(Draws(1), IDS) for _ in range(2))
    assert torch.equal(state, torch.random.get_rng_state()), "the global random state was used"
    assert [h.x.shape[-1] for h in found] == [6] * 12 + [16] * 8 + [40] * 16
    assert sum(h.centered for h in found) == 18 and len({h.eps for h in found}) == 3
    assert all(torch.equal(a.write, b.write) for a, b in zip(found, again, strict=True))
    assert not any(torch.equal(h.gain, torch.ones_like(h.gain)) for h in found)


@pytest.mark.parametrize("family", ("gpt2", "llama"))
def test_moves_of_the_scale_by_hand(family):
    model = random_model(family, 0)
    run, parts = Predictions.of(model, IDS), components(model, IDS)
    got, writes, eps = heads.scale_moves(run), heads.head_writes(model, IDS), run.readout.eps

    def scale(x):
        square = x.var(-1, correction=0) if family == "gpt2" else x.square().mean(-1)
        return torch.sqrt(square[:, 1:-1] + eps)

    behind = {"1": ("a1", "m1", "a2", "m2"), "2": ("a2", "m2")}
    names = list(parts)
    for head, c in writes.items():
        means, singles = [], []
        for last in behind[head[0]]:
            x = sum(parts[name] for name in names[: names.index(last) + 1])
            move = (scale(x - c) / scale(x) - 1).abs()
            means, singles = [*means, float(move.mean())], [*singles, float(move.max())]
        row = got.loc[head]
        expected = [means[0], means[-1], max(means), max(singles)]
        moves = list(row[["next norm", "final norm", "largest", "one position"]])
        assert moves == pytest.approx(expected, rel=1e-9), "Another stream? With the first position? Signs that cancel?"
        x = sum(parts.values())
        whole, without = (run.lead(run.readout.logits(v)[:, 1:-1]) for v in (x, x - c))
        frozen = whole - run.lead(run.readout.logits(x - c, run.readout.scale(x))[:, 1:-1])
        direct = whole - without
        off = float((frozen - direct).norm() / direct.norm())
        assert row["error of frozen"] == pytest.approx(off, rel=1e-8), "Of another head, or of the slope?"


def test_drawn_cases():
    pieces, x, readout = drawn_case(Draws(2), 7, 3, False)
    assert pieces.shape == (3, 20, 7) and not readout.centered
    agree(x, pieces.sum(0), "Other pieces?", tol=0)
    assert 0.1 < float(x.square().mean().sqrt()) / math.sqrt(readout.eps) < 20, "ε does not count"
    assert readout.gain.min() < 0 and readout.unembedding.shape == (30, 7) and readout.constant.shape == (30,)
