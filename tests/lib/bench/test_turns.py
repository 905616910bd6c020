"""Timing in turns, on a clock that the calls themselves set forward."""

import weakref

import pytest
from normgeom.bench import turns
from normgeom.bench.turns import in_turns

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
