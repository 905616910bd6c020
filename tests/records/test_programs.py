"""The programs behind figures/data, on models small enough to check by hand."""

import normgeom as ng
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from normgeom_lab.scale import models
from pandas.testing import assert_frame_equal
from transformers import AutoModel, AutoTokenizer, LlamaConfig, LlamaModel


def run(*arguments):
    from records.__main__ import main

    done = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def windows(encoder, text, count, length):
    ids = AutoTokenizer.from_pretrained(encoder)(text.read_text("utf-8"), return_tensors="pt").input_ids[0]
    return ids[: count * length].view(count, length)


def test_gains_are_the_models(encoder, folder):
    run("gains", encoder, "tiny", "--source", "made here")
    table, provenance = ng.recorded("gains-tiny")
    model = AutoModel.from_pretrained(encoder)
    norms = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.LayerNorm)}
    assert set(table.columns) == set(norms)
    for name, norm in norms.items():
        np.testing.assert_allclose(table[name], norm.weight.detach(), rtol=1e-6)
    assert provenance["model"] == "tiny" and provenance["kinds"] == "layer"


def test_zeroed_gains_turn_the_embeddings(encoder, text, folder, monkeypatch):
    from records import zeroed

    monkeypatch.setattr(zeroed, "COUNTS", (0, 3, 16))
    run("zeroed", encoder, "tiny", text, "--corpus", "words", "--windows", 6, "--length", 8)
    table = ng.recorded("zeroed-tiny").table.set_index(["norms", "coordinates", "k"]).mean_cosine
    assert (table.xs(0, level="k") > 1 - 1e-6).all(), "nothing was silenced"
    whole = table.xs(16, level="k").groupby("norms").agg(np.ptp)
    assert (whole < 1e-6).all(), "with all silenced the order cannot matter: were the gains put back between cases?"

    model = AutoModel.from_pretrained(encoder).eval()
    ids = windows(encoder, text, 6, 8)
    with torch.no_grad():
        before = model(ids).last_hidden_state.mean(1)
        last = ng.find_norms(model)[-1].module
        last.weight[last.weight.abs().argsort()[:3]] = 0
        after = model(ids).last_hidden_state.mean(1)
    expected = float(torch.nn.functional.cosine_similarity(before, after).mean())
    assert table["last", "smallest", 3] == pytest.approx(expected, abs=1e-5)


def test_draws_of_zeroed_gains_differ_and_are_those_of_their_seed(encoder, text, folder, monkeypatch):
    from records import zeroed

    monkeypatch.setattr(zeroed, "DRAWN", (3, 16))
    how = ("zeroed", encoder, "tiny", text, "--corpus", "words", "--windows", 6, "--length", 8, "--part", "draws")
    run(*how, "--draws", 3, "--seed", 5)
    table = ng.recorded("zeroed-draws-tiny").table.set_index(["k", "seed"]).mean_cosine
    assert [*table[3].index] == [*table[16].index] == [5, 6, 7]
    assert table[3].nunique() == 3, "the same coordinates in every draw?"
    assert np.ptp(table[16]) < 1e-6, "with all silenced the draw cannot matter: were the gains put back between cases?"

    model = AutoModel.from_pretrained(encoder).eval()
    ids = windows(encoder, text, 6, 8)
    with torch.no_grad():
        before = model(ids).last_hidden_state.mean(1)
        generator = torch.Generator().manual_seed(6)
        for site in ng.find_norms(model):
            site.module.weight[torch.randperm(site.dim, generator=generator)[:3]] = 0
        after = model(ids).last_hidden_state.mean(1)
    expected = float(torch.nn.functional.cosine_similarity(before, after).mean())
    assert table[3, 6] == pytest.approx(expected, abs=1e-5)


def test_massive_coordinates(encoder, text, folder):
    run("massive", encoder, "tiny", text, "--corpus", "words", "--windows", 6, "--length", 8)
    table = ng.recorded("massive-tiny").table
    model = AutoModel.from_pretrained(encoder).eval()
    sites, outputs = ng.find_norms(model), {}
    with ng.watch(model, sites, lambda site, x, y: outputs.update({site.name: y})), torch.no_grad():
        model(windows(encoder, text, 6, 8))
    for row, site in zip(table.itertuples(), sites, strict=True):
        n = (outputs[site.name].reshape(-1, 16) - site.bias) / site.weight
        rms = n.square().mean(0).sqrt()
        assert row.coordinate == int(rms.argmax())
        assert row.rms == pytest.approx(float(rms.max()), rel=1e-3)
        assert row.gain_rank == int((site.weight.abs() <= abs(row.gain) * (1 + 1e-6)).sum())
        assert row.silent_share == 0 and row.radius_q50 == pytest.approx(1, abs=1e-3)


def test_a_race_takes_ratios_within_rounds(monkeypatch):
    from normgeom_lab import precision as turns

    from records import speed

    clock, slower = [0.0], iter([1.0, 1.0, 1.0, 8.0, 1.0])  # the machine is slow in one call of ours

    def ours():
        clock[0] += 0.01 * next(slower)

    def theirs():
        clock[0] += 0.05

    monkeypatch.setattr(turns.experiments.time, "perf_counter", lambda: clock[0])
    result = speed.race(speed.Race("a", "b", 1, 2.0, ours, theirs, rounds=3))
    assert result["ratio"] == pytest.approx(5.0), "theirs over ours, the median of rounds"
    assert result["lowest"] == pytest.approx(0.05 / 0.08)
    assert result["seconds"] == pytest.approx(0.01)


def test_angles_and_what_chance_shows(encoder, text, folder):
    run("angles", encoder, "tiny", text, "--corpus", "words", "--windows", 6, "--length", 8, "--drawn", 20)
    table, provenance = ng.recorded("angles-tiny")
    model, ids = AutoModel.from_pretrained(encoder).eval(), windows(encoder, text, 6, 8)
    survey = ng.Survey(model, ["uniform", "random_a", "random_b"]).run([ids], progress=False)
    assert_frame_equal(table, survey.table(), rtol=1e-5, check_dtype=False)
    assert provenance["windows"].startswith("6 of 8 tokens")
    nulls = ng.recorded("nulls-tiny").table
    assert set(zip(nulls.side, nulls.null, strict=True)) == {
        (side, null) for side in ("in", "out") for null in ("random_", "signs_", "matched_")
    }
    assert (nulls.low < nulls["median"]).all() and (nulls["median"] < nulls.high).all()
    matched = survey_of(model, ids, [f"matched_{i:03d}" for i in range(20)])
    rows = matched.query("side == 'out' and positions == 'rest'").groupby("site", sort=False).occupancy
    here = nulls.query("side == 'out' and null == 'matched_'")
    np.testing.assert_allclose(here["median"], rows.median(), rtol=1e-4)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_angles_are_evidence_whichever_the_norm(kind, encoder, text, folder):
    model = encoder
    if kind == "rms":
        model = folder / "decoder"
        config = LlamaConfig(
            vocab_size=9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        LlamaModel(config).save_pretrained(model)
        AutoTokenizer.from_pretrained(encoder).save_pretrained(model)
    run("angles", model, "tiny", text, "--corpus", "words", "--windows", 6, "--length", 8, "--drawn", 20)
    table = models(folder)["tiny"]
    assert set(table.kind) == {kind} and ("drop_error" in table) == (kind == "layer")
    assert table.high.notna().all()


def survey_of(model, ids, directions):
    return ng.Survey(model, directions, pilot=ids).run([ids], progress=False).table()
