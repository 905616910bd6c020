"""verify: the alarm rings when it must, and only then."""

import math
import re

import normgeom as ng
import pytest
import torch
from normgeom.checks import verdicts

NAN, INF = math.nan, math.inf
# what is given to verify, and the line that it prints
LINES = {
    "a near miss": (("eq-x", 3e-16, 0.0312), "eq-x: error ≤ 1e-12; with a near miss 0.03"),
    "rounding noise": (("eq-x", 9e-13, 0.0308), "eq-x: error ≤ 1e-12; with a near miss 0.03"),
    "an error at the bound": (("eq-x", 0.5, 0.6, 0.5, "ε outside"), "eq-x: error ≤ 0.5; with ε outside 0.6"),
    "an infinite near miss": (("eq-x", 0.0, INF), "eq-x: error ≤ 1e-12; with a near miss inf"),
    "a claim": (("claim-x", 0.1234, 83.27, 1.0, "shuffled rows"), "claim-x: value 0.12 ≤ 1; with shuffled rows 83"),
    "the worst of several": (
        ("eq-x", [1e-16, 2e-13], {"no gain": 0.4, "no ε": 0.03}),
        "eq-x: error ≤ 1e-12; with no gain, or no ε 0.03",
    ),
    "tensors": (("eq-x", torch.tensor([0.0, 1e-16]), torch.tensor(2.0)), "eq-x: error ≤ 1e-12; with a near miss 2"),
    "an iterator": (("eq-x", 0.0, iter([2.0, 3.0])), "eq-x: error ≤ 1e-12; with a near miss 2"),
    "a claim at other parameters": (
        ("claim-x", 5.0, 0.1, 1.0, "shuffled rows", False),
        "claim-x: reported, not asserted (parameters differ from the defaults): "
        "deviation 5, bound 1; with shuffled rows 0.1",
    ),
}


@pytest.mark.parametrize(("given", "line"), LINES.values(), ids=LINES)
def test_what_holds_prints_one_line(given, line, capsys):
    assert ng.verify(*given) is None
    assert capsys.readouterr().out == f"{line}\n"


FAILURES = {
    "above the bound": (("eq-x", 0.1, 1.0, 0.01), "eq-x: deviation 0.1 is above 0.01: the statement does not hold"),
    "a claim": (("claim-x", 5.0, 10.0), "claim-x: deviation 5 is above 1e-12: the statement does not hold"),
    "other parameters": (("thm-x", 5.0, 10.0, 1.0, None, False), "thm-x: deviation 5 is above 1"),
    "a near miss that holds": (
        ("eq-x", 0.001, 0.005, 0.01, "σ + ε"),
        "eq-x: with σ + ε the deviation is 0.005, not above 0.01: the check cannot tell",
    ),
    "one near miss of two": (
        ("eq-x", [0.0], {"no gain": 0.4, "no ε": 1e-14}),
        "eq-x: with no gain, or no ε the deviation is 1e-14",
    ),
    "a near miss at the bound": (("eq-x", 0.1, 0.5, 0.5), "eq-x: with a near miss the deviation is 0.5, not above 0.5"),
    "NaN": (("eq-x", NAN, 1.0), "eq-x: deviation nan"),
    "NaN among others": (("eq-x", [0.0, NAN], 1.0), "eq-x: deviation nan"),
    "NaN first": (("eq-x", [NAN, 0.0], 1.0), "eq-x: deviation nan"),
    "a near miss of NaN": (("eq-x", 0.0, [1.0, NAN]), "eq-x: with a near miss the deviation is nan"),
    "infinite": (("eq-x", INF, INF), "eq-x: deviation inf"),
}


@pytest.mark.parametrize(("given", "message"), FAILURES.values(), ids=FAILURES)
def test_what_does_not_hold_fails(given, message):
    with pytest.raises(AssertionError, match="^" + re.escape(message)):
        ng.verify(*given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(((0.0, 1.0, tol), "tol: expected a positive number") for tol in (0.0, -1.0, INF, NAN)),
        (([], 1.0), "holds: expected a deviation, got none"),
        ((0.0, {}), "breaks: expected a deviation, got none"),
    ],
)
def test_a_check_that_tells_nothing_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        ng.verify("eq-x", *given)


def test_what_was_judged_is_kept_unrounded():
    before = len(verdicts)
    ng.verify("eq-x", [1e-16, 2e-13], [0.4123, 0.5])
    with pytest.raises(AssertionError):
        ng.verify("claim-x", 0.7, 0.6, tol=0.5)
    assert verdicts[before:] == [("eq-x", 2e-13, 0.4123, 1e-12), ("claim-x", 0.7, 0.6, 0.5)], "a failure as well"
