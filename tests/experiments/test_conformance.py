"""Rows that break norms: answers by fractions and a square root, bounds that right norms keep and wrong ones do not."""

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
    ("mean of squares − square of mean", "float32"): "large mean",
    ("ε outside the root", "float32"): "tiny",
    ("ε outside the root", "float16"): "subnormal",
    ("statistics in the row's dtype", "bfloat16"): "ordinary",
    ("statistics in the row's dtype", "float16"): "one massive entry",
    ("LlamaRMSNorm", "bfloat16"): "ordinary",
}


def truth(case):
    """Outputs to 45 digits: fractions, and one square root of a decimal number."""
    x = [Fraction(v) for v in GIVEN["rows"][case["dtype"]][case["row"]]]
    layer, d = case["norm"] == "layer", len(x)
    x = [v - sum(x) / d for v in x] if layer else x
    square = sum(v * v for v in x) / d + Fraction(GIVEN["eps"])
    with localcontext(prec=60):
        root = (Decimal(square.numerator) / square.denominator).sqrt()
        for i, v in enumerate(x):
            v *= Fraction(GIVEN["gain"][i % 8]) if case["affine"] else 1
            bias = Decimal(GIVEN["bias"][i % 8]) if case["affine"] and layer else 0
            yield Decimal(v.numerator) / v.denominator / root + bias


def test_the_file_is_what_the_experiment_writes():
    assert json.loads(json.dumps(conformance.vectors())) == GIVEN
    assert conformance.PATH.stat().st_size < 60_000
    for dtype, rows in GIVEN["rows"].items():
        for row in rows.values():
            assert torch.tensor(row, dtype=conformance.DTYPES[dtype]).tolist() == row, "not a number of this dtype"


def test_answers_have_thirty_digits():
    for case in CASES:
        for got, exact in zip(map(Decimal, case["answers"]), truth(case), strict=True):
            assert abs(got - exact) <= abs(exact) * Decimal("1e-29"), case


def test_bounds_allow_a_rounding_and_little_more():
    for case in CASES:
        dtype = conformance.DTYPES[case["dtype"]]
        for y, bound in zip(map(float, case["answers"]), case["bounds"], strict=True):
            rounded = abs(float(torch.tensor(y, dtype=torch.float64).to(dtype)) - y)
            assert rounded < bound
            if case["row"] in ("ordinary", "odd"):
                assert bound < 1.02 * torch.finfo(dtype).eps / 2 * abs(y) + 3e-5, "it says nothing"


@pytest.mark.parametrize("dtype", conformance.DTYPES)
@pytest.mark.parametrize("kernel", OURS)
def test_ours_pass_all(kernel, dtype):
    found = conformance.kernels(kernel, dtype)
    assert (found["cases"], found["failed"]) == (20, 0) and found["worst"] < 1


@pytest.mark.parametrize(("kernel", "dtype"), WRONG)
def test_wrong_ones_fail_where_they_are_wrong(kernel, dtype):
    assert WRONG[kernel, dtype] in conformance.kernels(kernel, dtype)["failing"].split(", ")


def test_nan_is_a_failure():
    found = conformance.tried("rms", lambda x, gain, bias: x * torch.nan, "float32", GIVEN)
    assert all(ratio == float("inf") for _, _, ratio in found)
