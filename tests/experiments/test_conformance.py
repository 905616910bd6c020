"""Rows that break norms: answers by fractions, a square root and autograd, bounds that only right norms keep."""

import json
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch

from experiments import conformance

GIVEN = json.loads(conformance.PATH.read_text("utf-8"))
CASES = GIVEN["cases"]
OURS = ("ng.layer_norm", "ng.rms_norm")
# kernels that are wrong, and a row that shows it
WRONG = {
    ("mean of squares − square of mean", "float32", "output"): "large mean",
    ("ε outside the root", "float32", "output"): "tiny",
    ("ε outside the root", "float16", "output"): "subnormal",
    ("ε outside the root", "float32", "x"): "zeros",
    ("statistics in the row's dtype", "bfloat16", "output"): "ordinary",
    ("statistics in the row's dtype", "float16", "output"): "one massive entry",
    ("partial sums in the row's dtype", "bfloat16", "twice"): "long",
    ("partial sums in the row's dtype", "float16", "output"): "large sum",
    ("LlamaRMSNorm", "bfloat16", "output"): "ordinary",
    ("F.layer_norm", "bfloat16", "x"): "one massive entry",
    ("F.rms_norm", "float32", "x"): "huge",
    ("T5LayerNorm", "bfloat16", "x"): "equal entries",
}


def row(case):
    return conformance.along(**GIVEN["rows"][case["dtype"]][case["row"]])


def repeated(case, name):
    """Gain, bias or upstream, along a row of float64."""
    return conformance.exactly(conformance.along(GIVEN[name], len(row(case))))


def truth(case):
    """The first outputs to 45 digits: fractions, and one square root of a decimal number."""
    x = [Fraction(v) for v in row(case)]
    layer, d = case["norm"] == "layer", len(x)
    m = sum(x) / d if layer else 0
    square = sum((v - m) ** 2 for v in x) / d + Fraction(GIVEN["eps"])
    with localcontext(prec=60):
        root = (Decimal(square.numerator) / square.denominator).sqrt()
        for i in range(len(case["answers"]["output"])):
            v = (x[i] - m) * (Fraction(GIVEN["gain"][i % 8]) if case["affine"] else 1)
            bias = Decimal(GIVEN["bias"][i % 8]) if case["affine"] and layer else 0
            yield Decimal(v.numerator) / v.denominator / root + bias


def test_the_file_is_what_the_experiment_writes():
    assert json.loads(json.dumps(conformance.vectors())) == GIVEN
    assert conformance.PATH.stat().st_size < 300_000
    for dtype, rows in GIVEN["rows"].items():
        for entries in (given["entries"] for given in rows.values()):
            assert torch.tensor(entries, dtype=conformance.DTYPES[dtype]).tolist() == entries, "not of this dtype"


def test_outputs_have_thirty_digits():
    for case in CASES:
        for got, exact in zip(map(Decimal, case["answers"]["output"]), truth(case), strict=True):
            assert abs(got - exact) <= abs(exact) * Decimal("1e-29"), case


def test_gradients_are_those_of_autograd_in_float64():
    for case in CASES:
        x, gain = conformance.exactly(row(case)).requires_grad_(), repeated(case, "gain").requires_grad_()
        seen = gain if case["affine"] else torch.ones_like(gain).requires_grad_()
        normed = x - x.mean() if case["norm"] == "layer" else x
        y = normed * (normed.square().mean() + GIVEN["eps"]) ** -0.5 * seen
        found = torch.autograd.grad(y, (x, seen), repeated(case, "upstream"))
        for key, got in zip(("x", "gain"), found, strict=True):
            answer = conformance.exactly(map(float, case["answers"][key]))
            got = got[: len(answer)]
            torch.testing.assert_close(got, answer, rtol=0, atol=1e-9 * float(got.abs().max()))


def test_long_answers_repeat():
    case = next(case for case in CASES if case["row"] == "long and odd" and case["norm"] == "layer" and case["affine"])
    x, gain, bias = conformance.exactly(row(case)), repeated(case, "gain"), repeated(case, "bias")
    y = torch.nn.functional.layer_norm(x, x.shape, gain, bias, GIVEN["eps"])
    expected = conformance.along([float(v) for v in case["answers"]["output"]], len(x))
    torch.testing.assert_close(y, conformance.exactly(expected))


def test_bounds_allow_a_rounding_and_little_more():
    for case in CASES:
        dtype = conformance.DTYPES[case["dtype"]]
        for key, answers in case["answers"].items():
            for y, bound in zip(map(float, answers), case["bounds"][key], strict=True):
                rounded = abs(float(torch.tensor(y, dtype=torch.float64).to(dtype)) - y)
                assert rounded <= bound
                if case["row"] in ("ordinary", "odd"):
                    assert bound < 1.03 * torch.finfo(dtype).eps / 2 * abs(y) + 6e-5, "it says nothing"


@pytest.mark.parametrize("part", ("output", "twice", "x", "gain"))
@pytest.mark.parametrize("dtype", conformance.DTYPES)
@pytest.mark.parametrize("kernel", OURS)
def test_ours_pass_all(kernel, dtype, part):
    found = conformance.kernels(kernel, dtype, part)
    if (kernel, part) == ("ng.rms_norm", "x") and dtype != "float16":
        assert found["failing"] == "huge", "the cube of 1/r is below the smallest number"
        return
    assert (found["cases"], found["failed"]) == (26, 0) and found["worst"] < 1


@pytest.mark.parametrize(("kernel", "dtype", "part"), WRONG)
def test_wrong_ones_fail_where_they_are_wrong(kernel, dtype, part):
    assert WRONG[kernel, dtype, part] in conformance.kernels(kernel, dtype, part)["failing"].split(", ")


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("kernel", ("LlamaRMSNorm", "T5LayerNorm"))
def test_two_roundings_pass_by_their_own_bound(kernel, dtype):
    assert (
        conformance.kernels(kernel, dtype, "output")["failed"]
        > 0
        == conformance.kernels(kernel, dtype, "twice")["failed"]
    )


def test_nan_is_a_failure():
    found = conformance.tried("rms", lambda x, gain, bias: x * torch.nan, "float32", "output", GIVEN)
    assert all(ratio == float("inf") for _, ratio in found)
