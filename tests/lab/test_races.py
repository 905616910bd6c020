"""What a race says: a made-up race whose numbers tell where they come from."""

import itertools

import pandas as pd
import pytest
from normgeom_lab.precision import at_size, costs, layer_over_rms, least_speedups, speedups

SIZES = ((64, 8), (16, 32))
TIMES = {("copy", "torch"): 1, ("layer", "ours"): 6, ("layer", "torch"): 3, ("rms", "ours"): 2, ("rms", "torch"): 8}


@pytest.fixture
def race():
    """Seconds are TIMES, ten times as many with the backward pass, a hundred times in bfloat16, and so on."""
    rows = []
    for threads, (n, d), dtype, backward, (norm, way) in itertools.product(
        (1, 2), SIZES, ("float32", "bfloat16"), (False, True), TIMES
    ):
        scale = 10.0**backward * 100.0 ** (dtype == "bfloat16")
        seconds = TIMES[norm, way] * scale
        if (threads, n, norm, way) == (2, 16, "rms", "ours"):
            seconds *= 2  # slower there
        torchs = TIMES[norm, "torch"] * scale
        rows.append((threads, n, d, dtype, backward, norm, way, seconds, seconds * 7, torchs / seconds))
    names = "threads rows d dtype backward norm way seconds over_copy torch_over_this"
    race = pd.DataFrame(rows, columns=names.split())
    return race.assign(worst=race.torch_over_this / 2)


def test_one_size_without_the_copy(race):
    found = at_size(race, 16, 32, threads=2)
    assert len(found) == 4 * 4
    assert set(found.threads) == {2} and set(found.rows) == {16} and set(found.norm) == {"layer", "rms"}
    assert set(at_size(race, 16, 32).threads) == {1}, "one thread unless told"


def test_costs_are_times_over_the_copys_with_one_thread(race):
    table = costs(race, SIZES)
    assert table.index.names == ["rows × features", "norm", "way"]
    assert list(table.index.unique(0)) == ["16 × 32", "64 × 8"]
    assert table.loc[("16 × 32", "RMSNorm", "ours")]["forward", "float32"] == 7 * 2, "the slower one has two threads"
    assert table.loc[("64 × 8", "LayerNorm", "torch")]["forward and back", "bfloat16"] == 7 * 3000
    assert table.shape == (2 * 4, 4) and not table.isna().any(axis=None)


def test_speedups_at_one_size(race):
    table = speedups(race, 64, 8, "ours")
    assert table.loc["LayerNorm"].to_list() == [0.5] * 4, "torch's time over ours, not ours over torch's"
    assert table.loc["RMSNorm"].to_list() == [4] * 4


def test_the_least_speedup_over_sizes(race):
    table = least_speedups(race, iter(SIZES), "ours")
    assert list(table.columns) == ["1 thread", "2 threads"]
    assert table.loc[("rms", "float32", True)].to_list() == [2, 1], (
        "the least over sizes and runs, each number of threads alone"
    )
    assert (table.loc["layer"] == 0.25).all(axis=None)
    assert len(table) == 2 * 2 * 2


def test_layer_over_rms_by_whose(race):
    same = layer_over_rms(race, SIZES, "ours", "ours")
    assert list(same.columns) == ["64 × 8", "16 × 32"]
    assert set(same.index) == set(itertools.product(("forward", "forward and back"), ("float32", "bfloat16")))
    assert (same == 3).all(axis=None), "LayerNorm over RMSNorm, each pass and format with its own"
    assert (layer_over_rms(race, SIZES, "torch", "ours") == 1.5).all(axis=None), "whose LayerNorm comes first"
