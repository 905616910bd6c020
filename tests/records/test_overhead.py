"""The program that times surveys beside other ways to the same vectors, on a model of two layers."""

import sys
from concurrent.futures import ThreadPoolExecutor

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from normgeom.records import recorded

from records import overhead, ways
from records.__main__ import main

TINY = dict(n_layer=2, n_embd=48, n_head=4, vocab_size=101, bos_token_id=None, eos_token_id=None)
PLACE = ["site", "side", "direction"]
BIN = 0.25


def shape(rounds, batch=(1, 4)):
    return overhead.Shape("tiny", TINY, batch, rounds, goal=1.5)


@pytest.fixture
def model():
    """Gains and biases as training leaves them: at the start every output has the same length."""
    model = overhead.gpt2(TINY)
    generator = torch.Generator().manual_seed(1)
    for site in ng.find_norms(model):
        site.module.weight.data.normal_(1, 0.3, generator=generator)
        site.module.bias.data.normal_(0, 0.3, generator=generator)
    return model


def measured(way, model, number=2):
    run, table = way.prepare(overhead._twin(model))
    with torch.no_grad():
        for ids in overhead.batches(model, (3, 20), number):
            run(ids)
    return table()


@pytest.mark.parametrize(
    "name, places",
    [
        ("watch", 10),
        ("output_hidden_states", 3),
        ("TransformerLens run_with_cache", 10),
        ("TransformerLens run_with_hooks", 10),
        ("nnsight trace", 10),
    ],
)
def test_every_way_measures_what_the_survey_does(name, places, model):
    way = ways.WAYS[name]
    if not way.present:
        pytest.skip(f"{way.package} cannot be imported")
    theirs = measured(way, model).set_index(PLACE)
    assert len(theirs) == 3 * places, "places that this way sees, three directions each"
    ours = measured(ways.WAYS["Survey"], model).set_index(PLACE).loc[theirs.index]
    assert (theirs.tokens == 120).all(), "of two batches each vector counts once"
    for column in ("mean_deg", "std_deg"):
        np.testing.assert_allclose(
            theirs[column], ours[column], atol=1e-4, err_msg=f"{column}: another norm's vectors?"
        )
    for column in ("mean_abs_cos", "occupancy", "mean_norm"):
        np.testing.assert_allclose(theirs[column], ours[column], rtol=1e-4, atol=1e-6, err_msg=f"{column}: as above")
    for column in ("q05_deg", "q50_deg", "q95_deg"):
        far = (theirs[column] - ours[column]).abs().max()
        assert far <= BIN, f"{column}: {far} degrees from the survey's, which is more than a bin"


def test_the_plain_statistics_are_those_of_the_vectors():
    x = torch.randn(2, 500, 48, generator=torch.Generator().manual_seed(2)) + 1
    angles = ways.Angles(48)
    for part in x:
        angles.add(("a", "in"), part.view(20, 25, 48))
    row = angles.table().set_index("direction").loc["uniform"]
    rows = x.view(-1, 48).double()
    cos = rows.mean(-1) * 48**0.5 / rows.norm(dim=-1)
    degrees = cos.acos().rad2deg()
    assert row.tokens == 1000
    assert row.mean_deg == pytest.approx(float(degrees.mean()), abs=1e-4)
    assert row.std_deg == pytest.approx(float(degrees.std(correction=0)), abs=1e-4), "a variance lost in squares?"
    assert row.occupancy == pytest.approx(48 * float(cos.square().mean()), rel=1e-5)
    assert row.mean_norm == pytest.approx(float(rows.norm(dim=-1).mean()), rel=1e-5)
    assert row.q50_deg == pytest.approx(float(degrees.median()), abs=BIN)


def test_a_race_takes_ratios_within_rounds(monkeypatch):
    clock = [0.0]

    def taking(*seconds):
        left = iter((5.0, *seconds))  # the first call is not timed

        def run(ids):
            clock[0] += next(left)

        return ways.Way(lambda model: (run, ways.Angles(48).table))

    monkeypatch.setattr(overhead.time, "process_time", lambda: clock[0])
    # the machine is slower from round to round, and the other way stumbles once
    both = {"bare forward": taking(0.1, 0.2, 0.4), "other": taking(0.2, 3.2, 0.8)}
    monkeypatch.setattr(overhead, "WAYS", both)
    seen = overhead.race(shape(rounds=3))
    table = overhead.ratios(seen.assign(run=0)).set_index("way")
    assert (table.loc["bare forward", ["ratio", "lowest", "highest", "worst"]] == 1).all()
    assert table.ratio["other"] == pytest.approx(2.0), "over the bare pass of the same round, the median of rounds"
    assert table.lowest["other"] == pytest.approx(2.0) and table.highest["other"] == pytest.approx(16.0)
    assert table.seconds["other"] == pytest.approx(0.8)


def test_a_way_without_its_package_is_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "nnsight", None)
    assert not ways.WAYS["nnsight trace"].present
    assert "nnsight trace" not in set(overhead.race(shape(rounds=1)).way)


def test_the_worst_run_is_told():
    """Of three runs, each with one round that an accident made long."""
    seen = pd.DataFrame(
        dict(model="m", texts=1, length=4, goal=1.3, way=way, vectors=6, run=run, seconds=1.0, ratio=ratio)
        | dict(round=i)
        for way in ("Survey", "watch")
        for run, middle in enumerate((1.1, 1.2, 1.05))
        for i, ratio in enumerate((middle - 0.01, middle, 9.0))
    )
    table = overhead.ratios(seen).set_index("way")
    assert table.worst["Survey"] == 1.2 and table.highest["Survey"] == 9 and table.rounds["Survey"] == 9
    assert table.ratio["Survey"] == pytest.approx(1.19), "over all rounds"
    assert table.goal["Survey"] == 1.3 and table.goal["watch"] == 0, "a goal is the survey's"


def test_the_tables_have_their_columns(folder, monkeypatch):
    monkeypatch.setattr(overhead, "SHAPES", [shape(2, batch=(2, 8)), shape(3, batch=(1, 4))])
    monkeypatch.setattr(overhead, "TOKENS", (5000, 10000))
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "")  # set by the program
    monkeypatch.setattr(overhead, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))  # starts at once
    monkeypatch.setitem(sys.modules, "nnsight", None)
    monkeypatch.setitem(sys.modules, "transformer_lens", None)
    arguments = ["overhead", "--processes", "2", "--folder", str(folder)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output

    speed, notes = recorded("speed-survey")
    cell = ["model", "texts", "length", "way", "vectors", "rounds", "seconds", "ratio", "lowest", "highest"]
    assert list(speed.columns) == [*cell, "worst", "goal", "megabytes"]
    assert list(speed.way) == 2 * ["bare forward", "Survey", "watch", "output_hidden_states"]
    assert list(speed.vectors) == 2 * [0, 10, 10, 3], "two norms a layer and the last one, in and out"
    assert list(speed.rounds) == 4 * [2 * 2] + 4 * [2 * 3], "rounds of both runs"
    assert (speed.worst >= speed.lowest).all() and (speed.worst <= speed.highest).all()
    assert (speed.megabytes[::4] == 0).all(), "megabytes beyond the bare pass's"
    assert notes["absent"] == "transformer_lens, nnsight" and notes["tools"] == "none"
    assert "2 layers, 48 wide, 4 heads, 101 words" in notes["models"] and notes["runs"].startswith("2,")

    size, notes = recorded("size-survey")
    assert list(size.columns) == ["tokens", "batches", "vectors", "seconds", "megabytes", "state_bytes"]
    assert list(size.tokens) == [5000, 10000] and list(size.batches) == [1, 2]
    assert (size.vectors == 50).all(), "as many norms as GPT-2 small has, in and out"
    assert (size.state_bytes < 1e6).all() and (size.state_bytes > 0).all()
    assert "12 layers" in notes["model"]
