"""The race of the norms, at sizes of which nothing can be said, and everything can be checked."""

import normgeom as ng
import numpy as np
import pytest
from click.testing import CliRunner

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    from records.__main__ import main

    folder = tmp_path_factory.mktemp("norms")
    size = ["--rounds", "3", "--processes", "2", "--shape", "32", "64", "--threads", "1"]
    options = [*size, "--no-compiler", "--folder", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"):
            patch.setenv(name, "0")  # put back at the end
        done = CliRunner().invoke(main, ["norms", *options], catch_exceptions=False)
        patch.setattr("normgeom.records.FOLDER", folder)
        assert done.exit_code == 0, done.output
        yield ng.recorded("speed-norms").table, ng.recorded("speed-machine").table


def test_every_way_is_there_once_a_cell(table):
    cells = table[0].groupby(["dtype", "backward"])
    ways = {("copy", "torch"), ("layer", "normgeom"), ("layer", "torch")}
    ways |= {("rms", way) for way in ("normgeom", "torch", "transformers")}
    assert len(cells) == 4
    for _, rows in cells:
        assert sorted(zip(rows.norm, rows.way, strict=True)) == sorted(ways)


def test_ratios_are_of_the_same_rounds(table):
    rows = table[0].set_index(["norm", "way", "dtype", "backward"])
    theirs = rows.xs("torch", level="way")
    np.testing.assert_allclose(theirs.torch_over_this, 1)
    np.testing.assert_allclose(rows.loc["copy"].over_copy, 1)
    assert (rows.lowest <= rows.torch_over_this * (1 + 1e-6)).all(), "the lowest round is above the median"
    assert (rows.lowest <= rows.worst * (1 + 1e-6)).all(), "the lowest round is above the worst run's median"
    assert (rows.goal == 0).all(), "goals are of large inputs"


def test_rounds_of_all_processes_count(table):
    assert (table[0].rounds == 2 * 3).all()


def test_memory_is_that_of_the_way(table):
    """A chain holds its intermediate results, a kernel its output; small inputs go straight to torch."""
    peak = table[0].query("not backward and dtype == 'float32'").set_index(["norm", "way"]).peak
    assert peak["layer", "torch"] == pytest.approx(1 + 2 / 64, abs=0.01)
    assert peak["rms", "torch"] >= 2
    assert peak["rms", "normgeom"] == pytest.approx(peak["rms", "torch"])


def test_the_machine_has_a_roof(table):
    assert (table[1].gflop_per_s > 0).all()
