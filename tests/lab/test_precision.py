"""Chapter 11: errors that are put in, bytes known by hand, races on a clock of their own, and figures of them."""

import math
import weakref
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from normgeom_lab import precision as lab
from normgeom_lab.common.checks import Draws

U32 = 2.0**-24


def test_errors_of_entries_and_of_all_together():
    exact = torch.tensor([1.0, -2.0, 4.0, 1e-6], dtype=torch.float64)
    got = torch.tensor([1 + 2 * U32, -2 - 8 * U32, 4, 2e-6], dtype=torch.float64).float()
    assert lab.entry_error(got, exact, above=1e-3) == pytest.approx(4), "relative to its entry, in units of u = eps / 2"
    assert lab.entry_error(got, exact, above=0.0) == pytest.approx(1 / U32, rel=1e-6)
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    for values in ([3.3, 4.4], [3.0, 4.5]):
        assert lab.rms_error(torch.tensor(values), exact) == pytest.approx(0.1), "of all entries, not the largest"


def test_errors_at_means_by_ways_with_known_errors():
    seen = []

    def holes(x, share):
        seen.append(x)
        return x.index_fill(1, torch.tensor([3]), math.nan).where(torch.arange(len(x))[:, None] < share * len(x), x)

    ways = {
        "off": lambda x: x + torch.tensor([0.0, -0.5]).repeat(8),
        "a quarter lost": lambda x: holes(x, 0.25),
        "all lost": lambda x: holes(x, 1.0),
    }
    off, lost = lab.errors_at_means(ways, lambda x: x, (0.0, 1024.0), 40, 16, Draws(0))
    assert off["off"].to_list() == pytest.approx([0.5] * 2, abs=4 * 1024 * U32 * 2), "the largest |error|, with no sign"
    assert (off["a quarter lost"] == 0).all(), "rows with NaN must not count, nor hide the others"
    assert off["all lost"].isna().all() and (lost == [0, 0.25, 1]).all(axis=None), "rows with a NaN, not entries"
    for mean, x in zip((0, 1024), seen[::2], strict=True):
        assert x.dtype == torch.float32 and x.shape == (40, 16)
        assert (float(x.mean()), float(x.std())) == pytest.approx((mean, 1), abs=0.2)


def test_each_operation_reads_and_writes_what_it_must():
    def rows(work):
        return list(lab.traffic(work).itertuples(index=False, name=None))

    x, y = torch.ones(100, 10), torch.ones(100, 10)
    assert rows(lambda: x + y) == [("add", 8000, 4000)]
    assert rows(lambda: x.sum()) == [("sum", 4000, 4)]
    assert rows(lambda: x.to(torch.bfloat16)) == [("_to_copy", 4000, 2000)]
    assert rows(lambda: x.mul_(y)) == [("mul_", 8000, 4000)]
    assert rows(lambda: torch.mul(x, y, out=torch.empty(100, 10))) == [("mul", 8000, 4000)], "out is not read"
    assert rows(lambda: (x.view(10, 100), x.T, x[1:3], torch.empty_like(x))) == [], "views move nothing"
    assert rows(lambda: F.layer_norm(x, (10,))) == [("native_layer_norm", 4000, 4000 + 2 * 400)]


@pytest.fixture
def clock(monkeypatch):
    """A log of the names of calls in the order in which they ran, and calls that set the clock forward."""
    now, log, costs = [0.0], [], {"slow": 0.4, "fast": 0.1}

    def call(name):
        log.append(name)
        now[0] += costs[name]

    monkeypatch.setattr(lab.experiments.time, "perf_counter", lambda: now[0])
    return log, {name: lambda name=name: call(name) for name in costs}


@pytest.mark.parametrize(("fill", "number"), [(0.0, 1), (0.1, 1), (0.5, 2), (1.0, 4)])
def test_all_run_equally_often_in_every_round_in_an_order_drawn_anew(clock, fill, number):
    log, calls = clock
    seconds = lab.in_turns(calls, 20, fill)
    assert seconds.slow.to_list() == pytest.approx([0.4] * 20) and seconds.fast.to_list() == pytest.approx([0.1] * 20)
    rounds = np.array(log[4:]).reshape(20, 2, number)  # after two calls of each
    assert (rounds == rounds[:, :, :1]).all() and (rounds[:, 0] != rounds[:, 1]).all(), "who runs more often is faster"
    assert 4 <= (rounds[:, 0, 0] == "slow").sum() <= 16, "always after the same other"


@pytest.mark.parametrize("kept", [0, 3])
def test_results_are_kept(kept):
    alive, counts = weakref.WeakSet(), []

    def call():
        counts.append(len(alive))
        result = torch.ones(1)
        alive.add(result)
        return result

    lab.in_turns({"one": call}, 6, kept=kept)
    assert counts[-1] == kept


def test_errors_and_what_rounding_promises():
    means = [1.0, 100.0, 1e4, 1e6]
    off = pd.DataFrame({"one pass": [1e-6, 1e-2, 3.0, math.nan], "two": [1e-6, 2e-6, 2e-4, 5e-2]}, index=means)
    figure, alt = lab.errors_over_means(off, 1e-7)
    *_, linear, squared = figure.axes[0].lines
    assert linear.get_ydata()[-1] == pytest.approx(0.1) and squared.get_ydata()[-1] == pytest.approx(1e-3)
    assert "one pass from 1e-06 at mean 1 to 3e+00 at 10000; two" in alt, "NaN has no place in words"


def test_drift_shows_what_was_measured_and_what_the_law_predicts():
    """Two parts of 3 and 4 add up to 5, as squares."""
    parts = dict(coherent_sum=0.3, random_sum=0.4, coherent_statistics=0.003, random_statistics=0.004)
    rows = [dict(model=m, block=b, sum=0.1 * b, statistics=0.001 * b) | parts for m in lab.STACKS for b in (1, 2, 3)]
    figure, alt = lab.drift(pd.DataFrame(rows))
    for axis in figure.axes:
        lines = [list(line.get_ydata()) for line in axis.lines]
        expected = [[0.1, 0.2, 0.3], [0.5] * 3, [0.001, 0.002, 0.003], [0.005] * 3]
        assert np.allclose(lines, expected), "Parts added, not their squares? Another way's prediction?"
    assert "Gemma 3, partial sums rounded: 0.1 after the first block and 0.3 after the last norm" in alt
    assert "predicted 0.005 and 0.005" in alt


def test_quantised_forms_have_a_row_each_and_divergences_where_there_are():
    keys = [dict(model=m, form=f, bits=b) for m in ("a", "b") for f in ("p", "q") for b in (8, 4)]
    by_form = pd.DataFrame([key | dict(crest=n, measured=2 * n, ratio_q50=3 * n) for n, key in enumerate(keys)])
    found = lab.quantised_forms(by_form, pd.DataFrame([key | dict(kl=9.0) for key in keys[:4]]))
    assert found.loc[("a", "q")].to_list() == [2, 4, 6, 9, 6, 9, 9], "κ, then error, over predicted and KL by bits"
    assert found.loc[("b", "p")].isna().sum() == 2 and found.columns[0] == "κ" and found.columns[1] == "error, 8 bits"


def test_predictions_have_intervals_and_counts_and_an_encoder_has_errors():
    """The second model's last way changes little: a mark at the edge in place of a dot."""
    ways = [way for rows in lab.ROUNDED.values() for way in rows]
    row = dict(error=0.25, kl=0.12, kl_low=0.08, kl_high=0.2, agree=0.5)
    ends = pd.DataFrame([dict(model=m, way=w) | row for m in list(lab.STACKS)[:2] for w in ways])
    ends.loc[len(ends) - 1, ["kl", "kl_low", "kl_high"]] = 1e-9
    speech = pd.DataFrame([dict(way=w, error=0.1 * n, low=0.09 * n, high=0.11 * n) for n, w in enumerate(ways, 1)])
    figure, alt = lab.predictions(ends, speech, 80)
    drawn = [{line.get_marker(): list(line.get_xdata()) for line in axis.lines} for axis in figure.axes]
    assert drawn[0]["o"] == [0.12] * len(ways) and drawn[1] == {"o": [0.12] * (len(ways) - 1), "<": [lab.LEAST]}
    assert drawn[2]["o"] == list(speech.error), "a divergence for the error of an encoder?"
    named = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    place = figure.axes[0].get_yticks()[named.index("every partial sum")]
    assert figure.axes[2].lines[0].get_ydata()[1] == place
    assert [text.get_text() for text in figure.axes[0].texts] == ["changed", *["40"] * len(ways)]
    assert "SmolLM2: statistics 0.12, 40 changed" in alt and "encoder: statistics 0.1; sum 0.2" in alt


def test_times_are_measured_from_the_floor():
    rows = [
        dict(rows=8, d=4, threads=1, norm=n, dtype=t, backward=b, way=w, over_copy=float(k))
        for k, (n, t, b, w) in enumerate(product(lab.NORMS, lab.BYTES, lab.PASSES, ("torch", "normgeom")), 3)
    ]
    figure, alt = lab.ways_over_copy(pd.DataFrame(rows), 8, 4)
    for axis, backward in zip(figure.axes, lab.PASSES, strict=True):
        times = sorted(row["over_copy"] for row in rows if row["backward"] == backward)
        bars = sorted([x for x, _ in bar] for bars in axis.collections for bar in bars.get_segments())
        assert bars == [[lab.FLOORS[backward], time] for time in times]
        assert sorted(float(text.get_text()) for text in axis.texts) == times
    assert "LayerNorm in float32, forward, 4.0 against 3.0" in alt
