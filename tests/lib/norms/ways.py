"""The ways in which a norm is computed: what all of them share is tested in each."""

import norm_checks
import normgeom as ng
import pytest
from normgeom.norms import functions, kernels

NORMS = {
    "layer_norm": (ng.layer_norm, norm_checks.true_layer_norm),
    "rms_norm": (ng.rms_norm, norm_checks.true_rms_norm),
}
BOTH = pytest.mark.parametrize(("norm", "truth"), NORMS.values(), ids=NORMS)
WAYS = ("small", "large", "formula")


@pytest.fixture
def large(monkeypatch):
    """Any input counts as large, and a block is a few rows: small inputs have many, and the last one is short."""
    monkeypatch.setattr(kernels, "LOOK", 0)
    monkeypatch.setattr(kernels, "LARGE", 1)
    monkeypatch.setattr(kernels, "BLOCK", 40)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param == "large":
        request.getfixturevalue("large")
    elif request.param == "formula":
        for name in ("fast_layer_norm", "fast_rms_norm"):
            monkeypatch.setattr(functions, name, lambda *_: None)
    return request.param
