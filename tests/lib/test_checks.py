"""verify and check_parameters: the alarm rings when it must, and only then."""

import math
import re

import normgeom as ng
import pytest
import torch
from normgeom.checks import Draws, error, excess, outside, relative, verdicts


def test_a_statement_that_holds_prints_one_line(capsys):
    assert ng.verify("eq-x", 3e-16, 0.0312) is None
    assert capsys.readouterr().out == "eq-x: error ≤ 1e-12; with a near miss 0.03\n"


def test_the_line_does_not_move_with_rounding_noise(capsys):
    lines = set()
    for holds, breaks in ((0.0, 0.0312), (1e-16, 0.0308), (9e-13, 0.0314)):
        ng.verify("eq-x", holds, breaks, wrong="ε outside the root")
        lines.add(capsys.readouterr().out)
    assert lines == {"eq-x: error ≤ 1e-12; with ε outside the root 0.03\n"}


def test_a_claim_prints_what_was_measured(capsys):
    ng.verify("claim-x", 0.1234, 83.27, tol=1.0, wrong="shuffled rows")
    assert capsys.readouterr().out == "claim-x: value 0.12 ≤ 1; with shuffled rows 83\n"


def test_a_statement_that_does_not_hold():
    with pytest.raises(AssertionError, match=r"^eq-x: deviation 0\.1 is above 0\.01: the statement does not hold"):
        ng.verify("eq-x", 0.1, 1.0, tol=0.01)


def test_a_check_that_cannot_tell():
    message = r"^eq-x: with σ \+ ε the deviation is 0\.005, not above 0\.01: the check cannot tell"
    with pytest.raises(AssertionError, match=message):
        ng.verify("eq-x", 0.001, 0.005, tol=0.01, wrong="σ + ε")


@pytest.mark.parametrize(("holds", "breaks"), [(math.nan, 1.0), (0.0, math.nan), (math.inf, math.inf)])
def test_nan_never_passes(holds, breaks):
    with pytest.raises(AssertionError):
        ng.verify("eq-x", holds, breaks)


def test_the_tolerance_itself_belongs_to_the_statement(capsys):
    ng.verify("eq-x", 0.5, 0.6, tol=0.5)
    assert "error ≤ 0.5" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="cannot tell"):
        ng.verify("eq-x", 0.1, 0.5, tol=0.5)


def test_an_infinite_wrong_version_counts_as_wrong(capsys):
    ng.verify("eq-x", 0.0, math.inf)
    assert capsys.readouterr().out.endswith("inf\n")


@pytest.mark.parametrize("tol", [0.0, -1.0, math.inf, math.nan])
def test_a_tolerance_that_lets_anything_pass_is_refused(tol):
    with pytest.raises(ValueError, match=r"^tol: expected a positive number"):
        ng.verify("eq-x", 0.0, 1.0, tol=tol)


def test_a_claim_is_reported_where_the_parameters_differ(capsys):
    ng.verify("claim-x", 5.0, 0.1, tol=1.0, wrong="shuffled rows", asserts=False)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "reported, not asserted" in out
    assert "deviation 5, bound 1; with shuffled rows 0.1" in out


def test_a_claim_asserts_at_the_defaults():
    with pytest.raises(AssertionError, match="does not hold"):
        ng.verify("claim-x", 5.0, 10.0, tol=1.0)


def test_other_statements_always_assert():
    with pytest.raises(AssertionError, match="does not hold"):
        ng.verify("thm-x", 5.0, 10.0, tol=1.0, asserts=False)


def test_tensors_are_numbers(capsys):
    ng.verify("eq-x", torch.tensor(0.0), torch.tensor(1.0, dtype=torch.float64))
    assert capsys.readouterr().out.startswith("eq-x: error")


def test_parameters_at_their_defaults():
    assert ng.check_parameters(d=(8, 8, range(2, 100)), eps=(1e-5, 1e-5, ng.Interval(0, 1)), model=("a", "a", str))
    assert not ng.check_parameters(d=(9, 8, range(2, 100)), model=("a", "a", str)), "9 is not the default 8"
    assert ng.check_parameters(), "no parameter, none differs"


@pytest.mark.parametrize(
    ("parameter", "error", "message"),
    [
        ((1, 8, range(2, 100)), ValueError, "parameter p: expected a value in range(2, 100), got 1"),
        (("8", 8, range(2, 100)), ValueError, "parameter p: expected a value in range(2, 100), got '8'"),
        (("c", "a", {"a"}), ValueError, "parameter p: expected a value in {'a'}, got 'c'"),
        ((2.0, 0.5, ng.Interval(0, 1)), ValueError, "parameter p: expected a value in [0, 1], got 2.0"),
        ((math.nan, 0.5, ng.Interval(0, 1)), ValueError, "parameter p: expected a value in [0, 1], got nan"),
        (("x", 0.5, ng.Interval(0, 1)), ValueError, "parameter p: expected a value in [0, 1], got 'x'"),
        ((True, 1, range(2, 100)), ValueError, "parameter p: expected a value in range(2, 100), got True"),
        ((True, 0.5, ng.Interval(0, 1)), ValueError, "parameter p: expected a value in [0, 1], got True"),
        ((3, "a", str), TypeError, "parameter p: expected str, got 3"),
    ],
)
def test_a_bad_parameter_is_named(parameter, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        ng.check_parameters(good=(1, 1, int), p=parameter)


def test_an_interval_holds_both_ends():
    unit = ng.Interval(0, 1)
    assert 0 in unit and 1 in unit and 0.5 in unit
    assert -1e-9 not in unit and 1 + 1e-9 not in unit
    assert math.inf not in unit and None not in unit
    assert repr(ng.Interval(1e-8, 0.1)) == "[1e-08, 0.1]"


def test_of_several_deviations_the_worst_count(capsys):
    ng.verify("eq-x", [1e-16, 2e-13], {"no gain": 0.4, "no ε": 0.03})
    assert capsys.readouterr().out == "eq-x: error ≤ 1e-12; with no gain, or no ε 0.03\n"
    ng.verify("eq-x", torch.tensor([0.0, 1e-16]), iter([2.0, 3.0]))
    assert capsys.readouterr().out == "eq-x: error ≤ 1e-12; with a near miss 2\n"
    with pytest.raises(AssertionError, match="the statement does not hold"):
        ng.verify("eq-x", [0.0, 1e-3], 1.0)
    with pytest.raises(AssertionError, match=r"with no gain, or no ε the deviation is 1e-14"):
        ng.verify("eq-x", [0.0], {"no gain": 0.4, "no ε": 1e-14})


@pytest.mark.parametrize(("holds", "breaks"), [([0.0, math.nan], 1.0), ([math.nan, 0.0], 1.0), (0.0, [1.0, math.nan])])
def test_nan_among_several_never_passes(holds, breaks):
    with pytest.raises(AssertionError):
        ng.verify("eq-x", holds, breaks)


@pytest.mark.parametrize(("holds", "breaks", "name"), [([], 1.0, "holds"), (0.0, {}, "breaks"), (0.0, [], "breaks")])
def test_nothing_compared_is_refused(holds, breaks, name):
    with pytest.raises(ValueError, match=rf"^{name}: expected a deviation, got none"):
        ng.verify("eq-x", holds, breaks, wrong="nothing")


def test_deviations():
    a, b = torch.tensor([1.0, -4.0]), torch.tensor([[1.0, 2.0], [3.0, -5.0]])
    assert error(a, b) == 6 and error(b, a) == 6 and error(2, 5.0) == 3
    assert relative(a, b) == 6 / 5, "in units of b, not of a"
    assert excess(a, b) == 1 and excess(b, a) == 6 and excess(a, a + 1) == 0
    assert error(torch.tensor([1 + 2**-9], dtype=torch.float16), 1.0) == 2**-9, "float64 before the difference"
    assert error(torch.ones(2, requires_grad=True), 0.0) == 1
    for measure in (error, excess):
        assert math.isnan(measure(torch.tensor([0.0, math.nan]), 0.0))
        with pytest.raises(ValueError, match=r"^expected entries to compare"):
            measure(torch.ones(0), 1.0)


def test_draws_are_of_their_seed():
    first, second, other = Draws(3), Draws(3), Draws(4)
    assert first(2, 3).dtype == torch.float64 and first(2, 3).shape == (2, 3)
    second(2, 3), second(2, 3)
    assert torch.equal(first(4), second(4)) and not torch.equal(first(4), other(4))
    state = torch.random.get_rng_state()
    first.gain(5), first.rows(3, 4), first.eps()
    assert torch.equal(state, torch.random.get_rng_state()), "torch's own generator moved"


def test_a_drawn_gain():
    draw = Draws(0)
    gains = torch.stack([draw.gain(9, zeros=2, repeats=3) for _ in range(200)])
    sizes = gains.abs().sort(dim=-1).values
    assert bool((sizes[:, :2] == 0).all()) and bool((sizes[:, 2] >= 0.5).all())
    assert bool((sizes[:, 6:] == 2).all()) and bool((sizes[:, 5] < 2).all())
    assert bool(((gains > 0).any(0) & (gains < 0).any(0) & (gains == 0).any(0)).all()), "every place takes each kind"
    with pytest.raises(ValueError, match=r"^zeros \+ repeats: expected at most d = 4, got 2 \+ 3"):
        draw.gain(4, zeros=2, repeats=3)


def test_drawn_constants_and_rows():
    draw = Draws(0)
    logs = torch.tensor([draw.eps(1e-6, 1e-2) for _ in range(2000)]).log10()
    assert logs.min() >= -6 and logs.max() <= -2
    assert abs(float(logs.mean()) + 4) < 0.15, "not uniform in the logarithm"
    rows = draw.rows(5, 4000, 1e-4, 1.0)
    spread = rows.std(-1)
    assert torch.allclose(spread.log10(), torch.tensor([-4.0, -3, -2, -1, 0], dtype=torch.float64), atol=0.05)
    assert bool((rows.mean(-1).abs() > 0.03 * spread).all()), "centred already: a forgotten mean would not show"


def test_what_was_judged_is_kept_unrounded():
    before = len(verdicts)
    ng.verify("eq-x", [1e-16, 2e-13], [0.4123, 0.5])
    ng.verify("claim-x", 0.7, 0.6, tol=0.5, asserts=False)
    with pytest.raises(AssertionError):
        ng.verify("claim-x", 0.7, 0.6, tol=0.5)
    assert verdicts[before:] == [("eq-x", 2e-13, 0.4123, 1e-12), *[("claim-x", 0.7, 0.6, 0.5)] * 2], "a failure as well"


def test_drawn_cases_are_of_their_sizes_and_the_draws_in_turn():
    cases = Draws(3).cases(5, 4, 7, zeros=1, repeats=2, low=0.1, high=10)
    again = Draws(3)
    for (x, gain, bias, eps), d in zip(cases, (4, 7), strict=True):
        assert torch.equal(x, again.rows(5, d, 0.1, 10)), "other bounds?"
        assert torch.equal(gain, again.gain(d, 1, 2)), "zeros and repeats exchanged?"
        assert torch.equal(bias, again(d)) and eps == again.eps()


def test_outside_is_one_at_the_ends_of_an_interval():
    assert outside(2.0, 6.0, torch.tensor([2.0, 4.0])) == 1 and outside(2.0, 6.0, 6.0) == 1
    assert outside(2.0, 6.0, 5.0) == 0.5 and outside(2.0, 6.0, torch.tensor([3.0, 8.0])) == 2
    with pytest.raises(ValueError, match="low, high: expected low < high, got 6 and 2"):
        outside(6, 2, 3.0)
