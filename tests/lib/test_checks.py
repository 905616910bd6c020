"""verify and check_parameters: the alarm rings when it must, and only then."""

import math
import re

import normgeom as ng
import pytest
import torch


def test_a_statement_that_holds_prints_one_line(capsys):
    assert ng.verify("eq-x", 3e-16, 0.0312) is None
    assert capsys.readouterr().out == "eq-x: error ≤ 1e-12; with a near miss 0.03\n"


def test_the_line_does_not_move_with_rounding_noise(capsys):
    lines = set()
    for holds, breaks in ((0.0, 0.0312), (1e-16, 0.0308), (9e-13, 0.0314)):
        ng.verify("eq-x", holds, breaks, wrong="ε outside the root")
        lines.add(capsys.readouterr().out)
    assert lines == {"eq-x: error ≤ 1e-12; with ε outside the root 0.03\n"}


def test_a_claim_prints_on_which_side_of_the_line_its_wrong_version_lies(capsys):
    for breaks in (1.7, 83.0):
        ng.verify("claim-x", 0.1, breaks, tol=1.0, wrong="shuffled rows")
        assert capsys.readouterr().out == "claim-x: value ≤ 1; with shuffled rows > 1\n"


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
