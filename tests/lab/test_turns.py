"""Timing in turns, on a clock that the calls themselves set forward."""

import weakref

import pandas as pd
import pytest
import torch
from normgeom_lab import precision as turns
from normgeom_lab.precision import in_turns, time_over_copy

COSTS = {"slow": 0.4, "fast": 0.1}
WARM = 2 * len(COSTS)


@pytest.fixture
def race(monkeypatch):
    """A log of the names of calls in the order in which they ran, and the calls."""
    clock, log = [0.0], []

    def call(name):
        log.append(name)
        clock[0] += COSTS[name]

    monkeypatch.setattr(turns.time, "perf_counter", lambda: clock[0])
    return log, {name: lambda name=name: call(name) for name in COSTS}


@pytest.mark.parametrize(("fill", "number"), [(0.0, 1), (0.1, 1), (0.5, 2), (1.0, 4)])
def test_all_run_equally_often_in_every_round(race, fill, number):
    log, calls = race
    seconds = in_turns(calls, 5, fill)
    assert seconds.shape == (5, 2)
    for name, cost in COSTS.items():
        assert seconds[name].to_list() == pytest.approx([cost] * 5), "seconds of one call"
    rounds = [log[i : i + 2 * number] for i in range(WARM, len(log), 2 * number)]
    assert len(rounds) == 5
    for one in rounds:
        halves = {tuple(one[:number]), tuple(one[number:])}
        assert halves == {(name,) * number for name in COSTS}, "who runs more often finds its code and data in a cache"


def test_the_order_is_drawn_anew(race):
    log, calls = race
    in_turns(calls, 20)
    first = log[WARM::2]
    assert 4 <= first.count("slow") <= 16, "always after the same other"


class Result:
    """What a call makes; a weak reference to it can be held."""


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_results_are_kept(kept):
    seen, alive = [], []

    def call():
        alive.append(sum(ref() is not None for ref in seen))
        result = Result()
        seen.append(weakref.ref(result))
        return result

    in_turns({"one": call}, 6, kept=kept)
    assert alive[-1] == kept


def test_time_over_copy_is_the_median_of_ratios(monkeypatch):
    """Of ratios within a round: a slow round is slow for all."""
    x, results = torch.ones(3, 4), {}

    def in_a_made_up_race(calls, rounds, fill):
        results.update({name: call() for name, call in calls.items()})
        assert rounds == 3
        return pd.DataFrame({"copy": [1.0, 2.0, 4.0], "norm": [2.0, 2.0, 12.0], "other": [1.0, 2.0, 4.0]})

    monkeypatch.setattr(turns, "in_turns", in_a_made_up_race)
    got = time_over_copy({"norm": lambda x: 2 * x, "other": lambda x: 3 * x}, x, rounds=3)
    assert got.to_dict() == {"norm": 2.0, "other": 1.0}, "The ratio of medians? Its inverse? The copy itself?"
    assert torch.equal(results["norm"], 2 * x) and torch.equal(results["other"], 3 * x), "a norm without its input"
    assert torch.equal(results["copy"], x) and results["copy"].data_ptr() != x.data_ptr(), "no copy was made"


def test_time_over_copy_runs():
    got = time_over_copy(
        {"twice": lambda x: x + x, "often": lambda x: [x.sin() for _ in range(50)]}, torch.ones(500), 3
    )
    assert list(got.index) == ["twice", "often"] and (got > 0).all()
