"""What the book's own experiments measure, at sizes of which nothing can be said: the runs that they name."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from normgeom_lab.common.loop import next_token_loss, random_windows
from normgeom_lab.placement import first_over_last, train_bytes, varying_share

from experiments import dropping, placement, speed, twins

TINY = dict(n_layer=2, n_embd=48, n_head=4, vocab_size=101, bos_token_id=None, eos_token_id=None)


@pytest.fixture
def float64():
    yield
    torch.set_default_dtype(torch.float32)


def test_byte_models_are_those_of_the_point(float64):
    text = placement.text()
    model, losses = train_bytes(text, "post", 1, 1e-3, 20, seed=3, warmup=5, batch=8)
    assert placement.sweep("post", 1, 1e-3, 5, 3, steps=20) == dict(loss=sum(losses) / 20)
    found = placement.trained("post", 1, 1e-3, 5, 3, steps=20)
    with torch.no_grad():
        held_out = float(next_token_loss(model, next(random_windows(text, 65, 64, 1003))))
    assert (found["loss"], found["held_out"]) == (sum(losses) / 20, held_out)
    _, losses = train_bytes(text, "pre", 2, 1e-3, 20, seed=1, warmup=0, batch=8)
    deep = [dict(step=10 * i, loss=sum(losses[10 * i - 10 : 10 * i]) / 10) for i in (1, 2)]
    assert placement.deep("pre", 2, 1, steps=20) == deep
    started = placement.start(1e-3, 4, "post", steps=10)
    model, losses = train_bytes(text, "post", 6, 1e-3, 10, seed=4)
    probe = next(random_windows(text, 65, 64, 1004))
    assert list(started.values()) == [sum(losses) / 10, varying_share(model, probe), first_over_last(model, probe)]


def test_designs_get_more_seeds_at_their_best_setting(monkeypatch):
    def trained(design, layers, rate, warmup, seed):
        return dict(rate=rate, warmup=warmup, seed=seed, held_out=abs(rate - 1e-3) + warmup + seed)

    monkeypatch.setattr(placement, "trained", trained)
    rows = placement.designs("post", 6)
    assert len(rows) == 4 * 2 * 3 + 5 and rows.seed.tolist()[:3] == [0, 1, 2]
    assert rows.iloc[-5:][["rate", "warmup", "seed"]].to_numpy().tolist() == [[1e-3, 0, seed] for seed in range(3, 8)]
    assert len(placement.designs("sphere", 24)) == 6 * 2 + 5


@pytest.mark.slow
def test_tables_of_trainings():
    point = ("main", "layer", 1e-3, 0)
    found = twins.training(*point, steps=20)
    names = ("loss", "curve", "angles", "forms")
    loss, curve, angles, forms = (pd.DataFrame(found[f"training-{name}"]) for name in names)
    _, tables = twins.trained(*point, steps=20)
    assert loss.loss.tolist() == tables["loss"].loss.tolist()[-1:]
    assert curve.step.tolist() == [10, 20] and curve.loss[1] == pytest.approx(tables["curve"].loss[10:].mean())
    assert set(angles.step) >= {0, 1, 2, 4, 10, 20} and set(angles[angles.side == "out"].direction) == {"uniform"}
    assert forms.site.nunique() == 9
    assert len(found["training-ranks"]) == 0
    of = dropping.dropping(0, steps=20)
    ways = of["dropping-ways"].set_index("way")
    assert ways.more["as it is"] == 0 and abs(ways.kl["dropped after centring"]) < 1e-9
    assert of["dropping-gauge"].c.tolist() == list(dropping.SHIFTS)


def test_the_weights_of_the_pages_twins(monkeypatch, tmp_path):
    monkeypatch.setattr(twins.registry, "kept", tmp_path)
    monkeypatch.setitem(twins.SIZES, "0.2M", replace(twins.SIZES["0.2M"], layers=1, width=8, heads=2))
    losses = twins.pages_twins(steps=1)
    assert set(losses) == {"layer", "rms"}
    found = twins.halves(pd.DataFrame([losses]))
    assert {tensor.dtype for tensor in found.values()} == {torch.float16}
    assert {name.partition(".")[0] for name in found} == {"layer", "rms"} and "layer.wte.weight" in found
    assert "rms.ln_f.bias" not in found and not any("lm_head" in name for name in found)


def test_norms_race_in_the_same_rounds(monkeypatch):
    monkeypatch.setattr(speed.shutil, "which", lambda _: None)  # without a compiler
    rows = speed.race(32, 64, torch.float32, False, 3, "cpu") + speed.race(32, 64, torch.bfloat16, True, 3, "cpu")
    table = speed.ratios(pd.concat([pd.DataFrame(rows).assign(threads=1, process=i) for i in range(2)]))
    ways = {("copy", "torch"), ("layer", "normgeom"), ("layer", "torch")}
    ways |= {("rms", way) for way in ("normgeom", "torch", "transformers")}
    assert all(set(zip(of.norm, of.way, strict=True)) == ways for _, of in table.groupby("dtype"))
    assert (table.rounds == 6).all()
    np.testing.assert_allclose(table[table.way == "torch"].torch_over_this, 1)
    np.testing.assert_allclose(table[table.norm == "copy"].over_copy, 1)
    assert (table.worst <= table.torch_over_this * (1 + 1e-6)).all(), "the lower of two medians, and that of all rounds"


def test_geometry_races():
    for what in ("semi-axes", "axes", "product J v"):
        found = speed.geometry(what, 64)
        assert 0 < found["lowest"] <= found["ratio"]


def test_surveys_race_the_bare_pass():
    runs = [speed.survey_over_bare(i, ((2, 8), (1, 4)), 3, **TINY) for i in range(3)]
    table = speed.of_runs(pd.DataFrame([row for run in runs for row in run]))
    assert table[["texts", "length"]].to_numpy().tolist() == [[2, 8], [1, 4]]
    for row, of in zip(table.itertuples(), zip(*runs, strict=True), strict=True):
        fastest, middle, slowest = sorted(run["ratio"] for run in of)
        assert fastest > 1, "a survey of a tiny model takes longer than its pass"
        assert row.ratio == middle and row.lowest <= fastest and row.highest >= slowest
