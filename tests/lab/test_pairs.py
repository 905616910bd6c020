"""Pairs of twins for a survey: the same start, the same windows, and a text cut in two."""

import normgeom as ng
import pytest
import torch
from normgeom.checks import Draws
from normgeom.models.gpt2 import gpt2
from normgeom.text.tokens import random_windows
from normgeom.training.loop import train
from normgeom_lab import inference as module
from normgeom_lab.inference import held_out_bytes, pairs, tiny_pairs, train_pairs

CONFIG = gpt2(vocabulary=256, length=12, width=16, layers=1, heads=2)
KEYS = [("LayerNorm twin", 3), ("RMSNorm twin", 3), ("LayerNorm twin", 5), ("RMSNorm twin", 5)]
TEXT = torch.arange(400) % 7


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_pairs_are_twins_by_name_and_seed():
    made = pairs(CONFIG, (3, 5))
    assert list(made) == KEYS
    for run in (3, 5):
        for name, twin in zip(("LayerNorm twin", "RMSNorm twin"), ng.twins(CONFIG, run), strict=True):
            assert same(made[name, run], twin), f"{name} {run} does not begin as its seed says"
    assert {site.kind for site in ng.find_norms(made["RMSNorm twin", 3])} == {"rms"}, "the names are exchanged"
    with pytest.raises(ValueError, match=r"^seeds: expected at least one, got none$"):
        pairs(CONFIG, ())


def test_training_is_train_on_windows_of_the_seed():
    made = pairs(CONFIG, (3, 5))
    losses = train_pairs(made, TEXT, steps=12)
    assert list(losses.index) == KEYS and losses.index.names == ["model", "seed"]
    for (name, run), network in made.items():
        twin = ng.twins(CONFIG, run)[name == "RMSNorm twin"]
        expected = train(twin, random_windows(TEXT, 12, 16, seed=run), 12, 3e-3, description=None)
        assert same(network, twin), "other windows, or another rate"
        row = losses.loc[(name, run)]
        assert row["first update"] == expected[0]
        assert row["last 10 updates"] == pytest.approx(sum(expected[2:]) / 10), "the mean of the last ten"


def test_too_few_updates_are_refused_before_any():
    made = pairs(CONFIG, (3,))
    with pytest.raises(ValueError, match=r"^steps: expected at least 10, got 9$"):
        train_pairs(made, TEXT, steps=9)
    assert same(made["LayerNorm twin", 3], ng.twins(CONFIG, 3)[0])


def test_what_is_measured_on_is_not_trained_on(monkeypatch):
    monkeypatch.setattr(module, "APART", 100)
    text = "".join(chr(48 + i % 70) for i in range(500))
    training, batches = held_out_bytes(text, tokens=90, length=8)
    expected = list(text.encode())
    assert training.tolist() == expected[:-100], "the last bytes must be left out"
    assert torch.cat(batches).flatten().tolist() == expected[-100:][:88], (
        "whole windows of the first that are asked for"
    )
    assert batches[0].shape == (11, 8)


@pytest.mark.parametrize(("tokens", "had"), [(101, 100), (10**9, 100)])
def test_more_tokens_than_there_are(monkeypatch, tokens, had):
    monkeypatch.setattr(module, "APART", 100)
    with pytest.raises(ValueError, match=rf"^tokens: {tokens} asked, the corpus gives {had}; name a larger one$"):
        held_out_bytes("x" * 500, tokens, length=8)


def test_a_text_of_which_nothing_is_left_to_train_on(monkeypatch):
    monkeypatch.setattr(module, "APART", 100)
    with pytest.raises(ValueError, match=r"name a larger one$"):
        held_out_bytes("x" * 105, 50, length=8)


def test_tiny_pairs_are_of_several_sizes_and_away_from_their_start():
    found = tiny_pairs(Draws(1), 5)
    assert [(layer.config.n_embd, layer.config.n_layer) for layer, _ in found] == [(16, 2), (10, 3), (24, 4)]
    assert len({site.eps for layer, _ in found for site in ng.find_norms(layer)}) == 3, "one ε for all"
    for twins in found:
        kinds = [{(site.kind, site.eps) for site in ng.find_norms(twin)} for twin in twins]
        eps = twins[0].config.layer_norm_epsilon
        assert kinds == [{("layer", eps)}, {("rms", eps)}]
        layer, rms = (dict(twin.named_parameters()) for twin in twins)
        assert all(p.dtype == torch.float64 and p.std() > 0.1 for p in (*layer.values(), *rms.values())), "gains of 1?"
        assert torch.equal(layer["transformer.wte.weight"], rms["transformer.wte.weight"])
