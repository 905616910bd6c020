"""The recorded trainings, with runs of a few updates: tables are of the runs, and finished runs are not run again."""

import normgeom as ng
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens
from normgeom.training.twins import Size, load_twin
from normgeom_lab.common.variants import variants
from safetensors.torch import load_model

TABLES = ("loss", "curve", "angles", "freedom", "ranks", "forms", "rates")

pytestmark = pytest.mark.slow


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The program with a run or two in each part, in this process."""
    from records import training, watched

    tiny = Size(1, 16, 2, 1e-2, 20, batch=2, length=16, eval_interval=2)
    monkeypatch.setattr(training, "SIZES", {"1M": tiny, "0.2M": tiny})
    monkeypatch.setattr(watched, "SIZES", {"1M": tiny})
    monkeypatch.setattr(training, "HELD_OUT", 64)
    drawn = (0.1, "drawn", 0)
    grid = {
        "main": [(norm, 1e-2, *drawn) for norm in ("layer", "rms", "none")],
        "freedom": [("rms", 1e-2, 0.0, "shifted", 0), ("layer", 1e-2, 0.0, "centred", 0)],
        "ranks": [("rms", 1e-2, *drawn)],
        "rates": [("layer", 1e-3, *drawn), ("centre", 1e-2, *drawn)],
    }
    monkeypatch.setattr(training, "GRID", grid)

    def in_this_process(parts, steps, kept, processes):
        return {part: {key: training.run(part, key, steps, kept) for key in grid[part]} for part in parts}

    monkeypatch.setattr(training, "train_all", in_this_process)
    monkeypatch.setattr("normgeom.records.FOLDER", tmp_path)
    return training, watched, tmp_path


def invoke(program, *options):
    done = CliRunner().invoke(program.main, [str(option) for option in options], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_the_records_are_of_the_runs(small):
    training, _, folder = small
    kept = folder / "kept"
    invoke(training, "--folder", folder, "--kept", kept)
    found = {name: ng.recorded(f"training-{name}").table for name in TABLES}
    assert not any(table.isna().any(axis=None) for table in found.values()), "a record has holes"

    losses = found["loss"]
    assert len(losses) == 6 and set(losses.part) == {"main", "freedom", "ranks"}
    text = byte_tokens(load_corpus("stdlib").text)[-64:].view(4, 16)
    trained = load_twin(kept / "main" / "rms-0.01-0.1-drawn-0-20" / "model")
    with torch.no_grad():
        expected = float(trained(text, labels=text).loss)
    got = losses.query("part == 'main' and norm == 'rms'").loss.item()
    assert got == pytest.approx(expected, rel=1e-5), "not the loss of the trained model on the held-out text"

    assert sorted(set(found["curve"].step)) == [10, 20], "means of ten updates"
    raw = pd.read_parquet(kept / "main" / "rms-0.01-0.1-drawn-0-20" / "curve.parquet")
    mine = found["curve"].query("norm == 'rms' and step == 20").loss.item()
    assert mine == pytest.approx(raw[raw.step > 10].loss.mean(), rel=1e-6)
    assert set(found["angles"].norm) == {"layer", "rms"} and found["angles"].step.max() == 20
    assert set(found["freedom"].start) == {"drawn", "shifted", "centred"}
    assert len(found["ranks"]) == 2 * 3, "one row a norm and stage of one run"
    assert found["forms"].q05.between(0, 1).all() and (found["forms"].step > 0).all()

    rates = found["rates"]
    assert rates[["norm", "rate", "seed"]].values.tolist() == [["layer", 1e-3, 0], ["centre", 1e-2, 0]]
    trained = variants(training.SIZES["1M"].config(256), 0, ("centre",))["centre"]
    load_model(trained, kept / "rates" / "centre-0.01-0.1-drawn-0-20" / "model" / "model.safetensors")
    with torch.no_grad():
        assert rates.loss.iloc[1] == pytest.approx(float(trained(text, labels=text).loss), rel=1e-5)

    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*.parquet")}
    invoke(training, "--folder", folder, "--kept", kept)
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*.parquet")} == before, "a finished run ran again"


@pytest.mark.parametrize(("part", "written"), [("rates", {"rates"}), ("twins", set(TABLES) - {"rates"})])
def test_one_part_alone(small, part, written):
    training, _, folder = small
    invoke(training, "--part", part, "--folder", folder, "--kept", folder / "kept")
    assert {path.stem for path in folder.glob("*.csv")} == {f"training-{name}" for name in written}


def test_what_the_book_records():
    """Every variant at both rates with five seeds, the twins with ten; nothing twice."""
    from records import training

    counts = pd.DataFrame(training.GRID["rates"], columns=training.KEY).groupby(["norm", "rate"]).seed.agg(set)
    assert {norm for norm, _ in counts.index} == set(training.NORMS) and len(counts) == 14
    for (norm, _), seeds in counts.items():
        assert seeds == set(range(10 if norm in ("layer", "rms") else 5))
    assert all(len(set(keys)) == len(keys) for keys in training.GRID.values())


def test_the_starts_move_the_component_along_one_and_nothing_else(small):
    training, _, _ = small
    config = training.SIZES["1M"].config(256)
    drawn, centred, shifted = (variants(config, 0, ("layer",))["layer"] for _ in range(3))
    training.prepare(drawn, "drawn")
    training.prepare(centred, "centred")
    training.prepare(shifted, "shifted")
    writers = ("wte.weight", "wpe.weight", "c_proj.weight", "c_proj.bias")
    for (name, start), of_centred in zip(drawn.named_parameters(), centred.parameters(), strict=True):
        expected = start - start.mean(-1, keepdim=True) if name.endswith(writers) else start
        assert torch.allclose(of_centred, expected, atol=1e-7), f"{name} is not the drawn one without its mean"
    moved = {
        name for (name, a), b in zip(drawn.named_parameters(), shifted.parameters(), strict=True) if (a != b).any()
    }
    assert moved == {"transformer.wte.weight"}
    shift = shifted.transformer.wte.weight - drawn.transformer.wte.weight
    assert torch.allclose(shift, drawn.transformer.wte.weight.std().expand_as(shift), atol=1e-7)


def test_the_cost_of_measuring_is_recorded(small):
    _, watched, folder = small
    invoke(watched, "--rounds", 2, "--spacing", 3, "--folder", folder)
    table = ng.recorded("speed-training").table
    assert table.norm.tolist() == ["layer", "rms"] and (table.lowest <= table.ratio).all()
    assert (table.ratio > 1).all(), "measuring takes no time: it was not done"
