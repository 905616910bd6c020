"""The image of a norm against dense linear algebra, torch's own norms and fifty digits."""

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, draw
from test_secular import GAINS
from torch import nn

F64 = torch.float64
SIZES = (1, 2, 3, 16, 129, 512)


def projector(d):
    return torch.eye(d, dtype=F64) - 1 / d


def outputs(gain, centered, rows=200, seed=5, eps=0.0, bias=None):
    """Torch's own norm of Gaussian rows."""
    d = len(gain)
    x = draw(rows, d, seed=seed)
    if centered:
        return F.layer_norm(x, (d,), gain, bias, eps)
    y = F.rms_norm(x, (d,), gain, eps)
    return y if bias is None else y + bias


@pytest.mark.parametrize("centered", (True, False), ids=("layer", "rms"))
@pytest.mark.parametrize("kind", GAINS)
def test_axes_against_svd(kind, centered):
    for d in SIZES:
        gain = GAINS[kind](d)
        shape = torch.diag(gain) @ projector(d) if centered else torch.diag(gain)
        size = float(gain.abs().max()) or 1.0
        _, singular, _ = torch.linalg.svd(shape / size)
        body = ng.Ellipsoid(gain, centered=centered)
        zeros = int((gain == 0).sum())
        expected = d - max(zeros, 1) if centered else d - zeros
        assert body.dim == expected, f"d={d}: dimension {body.dim}, expected {expected} with {zeros} zero gains"
        assert body.semi_axes.shape == (body.dim,)
        assert (body.semi_axes.diff() <= 0).all(), "descending"
        axes = body.axes()
        assert axes.shape == (d, body.dim)
        complement = body.complement
        assert complement.shape == (d, d - body.dim)
        close(body.semi_axes / size, d**0.5 * singular[: body.dim], 1e-12 * d**0.5, f"semi-axes at d={d}", "√d?")
        basis = torch.cat([axes, complement], 1)
        close(basis.T @ basis, torch.eye(d, dtype=F64), 1e-12, f"axes and complement at d={d}", "G⁻¹1, not 1?")
        rest = shape.T @ axes / size
        close(rest.norm(dim=0) * d**0.5, body.semi_axes / size, 1e-11 * d**0.5, "lengths along the axes", "order?")


@pytest.mark.parametrize("centered", (True, False), ids=("layer", "rms"))
@pytest.mark.parametrize("zeros", (0, 1))
def test_outputs_lie_on_the_surface(centered, zeros):
    if zeros and not centered:
        pytest.skip("RMSNorm with a zero gain fills its image")
    gain, bias = draw(12, seed=1), draw(12, seed=2)
    gain[:zeros] = 0
    body = ng.Ellipsoid(gain, bias, centered)
    y = outputs(gain, centered, bias=bias)
    close(body.radius(y), torch.ones(200, dtype=F64), 1e-12, "radius of outputs at ε = 0", "β not subtracted?")
    close((y - body.center) @ body.complement, torch.zeros(200, 12 - body.dim, dtype=F64), 1e-12, "span", "G⁻¹1?")


def test_the_radius_is_the_length_of_the_normalised_vector():
    gain, eps = draw(12, seed=1), 0.5
    x = draw(200, 12, seed=5, scale=0.7)
    n = F.layer_norm(x, (12,), None, None, eps)
    radius = ng.Ellipsoid(gain).radius(gain * n)
    close(radius, n.norm(dim=-1) / 12**0.5, 1e-12, "radius with ε", "")
    sigma = x.var(-1, correction=0)
    close(radius, 1 / (1 + eps / sigma).sqrt(), 1e-12, "radius law", "ε outside the root?")
    assert float(radius.max()) < 1


@pytest.mark.parametrize("zeros", (1, 2, 3))
def test_the_radius_is_that_of_the_axes(zeros):
    """Coordinates along the axes over the semi-axes: the definition of an ellipsoid, whatever the zero gains."""
    gain = draw(10, seed=1)
    gain[:zeros] = 0
    body = ng.Ellipsoid(gain)
    y = outputs(gain, True)
    by_axes = ((y @ body.axes()) / body.semi_axes).norm(dim=-1)
    close(
        body.radius(y), by_axes, 1e-12, f"{zeros} zero gains", "is the rest spread over the coordinates without gain?"
    )


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_rounded_outputs_are_taken(dtype):
    gain, bias = draw(64, seed=1), 5 * draw(64, seed=2)
    y = ng.layer_norm(draw(100, 64, seed=5).to(dtype), gain.to(dtype), bias.to(dtype))
    radius = ng.Ellipsoid(gain.to(dtype), bias.to(dtype)).radius(y)
    assert float((radius - 1).abs().max()) < 1e3 * torch.finfo(dtype).eps
    with pytest.raises(ValueError, match="100 of 100 rows are not; y must include the bias"):
        ng.Ellipsoid(gain.to(dtype), bias.to(dtype)).radius(y + 1)


def test_a_row_off_the_span_or_beyond_the_surface_is_refused():
    gain = draw(8, seed=1)
    y = 0.5 * outputs(gain, True, rows=3)  # inside, so that only the plane can be missed
    y[1] += 1e-6
    with pytest.raises(ValueError, match="1 of 3 rows are not"):
        ng.Ellipsoid(gain).radius(y)
    gain[0] = 0
    y = outputs(gain, True, rows=3)
    y[2, 0] = 1e-6
    with pytest.raises(ValueError, match="1 of 3 rows are not"):
        ng.Ellipsoid(gain).radius(y)
    beyond = torch.stack([torch.ones(8), 1.1 * torch.ones(8)])
    with pytest.raises(ValueError, match="1 of 2 rows are not"):
        ng.Ellipsoid(torch.ones(8), centered=False).radius(beyond)


@pytest.mark.parametrize("centered", (True, False), ids=("layer", "rms"))
def test_samples_have_the_covariance_of_the_theory(centered):
    gain, bias = draw(6, seed=1), draw(6, seed=2)
    body = ng.Ellipsoid(gain, bias, centered)
    y, again = (body.sample(200_000, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(y, again), "not drawn from its generator"
    expected = torch.diag(gain) @ (projector(6) * 6 / 5 if centered else torch.eye(6, dtype=F64)) @ torch.diag(gain)
    close(y.mean(0), bias, 0.01, "mean of samples", "")
    close(torch.cov(y.T), expected, 0.03, "covariance of samples", "d/(d − 1) forgotten?")
    close(ng.Ellipsoid(gain, bias, centered).radius(y), torch.ones(len(y), dtype=F64), 1e-10, "on the surface", "")


def test_all_gains_zero_is_a_point():
    body = ng.Ellipsoid(torch.zeros(4), torch.arange(4.0))
    assert body.dim == 0 and body.semi_axes.shape == (0,) and body.axes().shape == (4, 0)
    close(body.complement, torch.eye(4, dtype=F64), 0, "everything is orthogonal to nothing", "")
    close(body.sample(3), torch.arange(4.0, dtype=F64).expand(3, 4), 0, "the bias", "")
    assert float(body.radius(torch.arange(4.0))) == 0


def test_huge_and_tiny_gains_keep_their_axes():
    gain = draw(8, seed=1)
    plain = ng.Ellipsoid(gain).semi_axes
    for scale in (2.0**900, 2.0**-900):
        body = ng.Ellipsoid(gain * scale)
        close(body.semi_axes / scale, plain, 0, "scaled by a power of two", "squared too early?")
        assert torch.equal(body.axes(), ng.Ellipsoid(gain).axes())


@pytest.mark.parametrize(("mean", "d"), [(10, 768), (30, 768), (100, 4096)])
def test_outputs_of_torch_are_taken_whatever_the_mean(mean, d):
    """F.layer_norm centres once: its n has a mean of the order of rounding times the mean of x."""
    gain = 1 + 0.1 * draw(d, seed=1, dtype=torch.float32)
    y = F.layer_norm(mean + draw(50, d, seed=2, dtype=torch.float32), (d,), gain)
    assert float((ng.Ellipsoid(gain).radius(y) - 1).abs().max()) < 1e-3


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_the_gain_of_another_norm_and_a_forgotten_bias_are_refused(dtype):
    gain, other, bias = (1 + 0.1 * draw(4096, seed=s, dtype=dtype) for s in range(3))
    y = ng.layer_norm(draw(50, 4096, seed=5, dtype=dtype), gain, bias)
    for wrong in (ng.Ellipsoid(other, bias), ng.Ellipsoid(gain), ng.Ellipsoid(gain, -bias)):
        with pytest.raises(ValueError, match="of 50 rows are not"):
            wrong.radius(y)


@pytest.mark.parametrize(
    ("norm", "centered"),
    [
        (nn.LayerNorm(6, dtype=F64), True),
        (ng.LayerNorm(6, dtype=F64), True),
        (nn.LayerNorm(6, elementwise_affine=False), True),
        (nn.RMSNorm(6, dtype=F64), False),
        (ng.RMSNorm(6), False),
    ],
    ids=lambda v: str(v),
)
def test_a_module_is_read(norm, centered):
    if getattr(norm, "weight", None) is not None:
        nn.init.normal_(norm.weight)
    body = ng.Ellipsoid.of(norm)
    assert body.centered is centered
    with torch.no_grad():
        y = norm(draw(50, 6, seed=5).to(torch.float32 if norm.weight is None else norm.weight.dtype) * 100)
    assert float((body.radius(y) - 1).abs().max()) < 1e-5


def test_a_site_of_any_model_is_read():
    class Gemma(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(0.3 * draw(6, seed=1).float())

        def forward(self, x):
            return ng.rms_norm(x, self.weight, unit_offset=True)

    norm = Gemma()
    with pytest.raises(TypeError, match=r"norm: .* got Gemma; .*find_norms"):
        ng.Ellipsoid.of(norm)
    (site,) = ng.find_norms(nn.Sequential(nn.Linear(6, 6), norm), torch.randn(2, 3, 6))
    body = ng.Ellipsoid.of(site)
    assert not body.centered
    close(body.weight, 1 + norm.weight.detach(), 1e-6, "gain", "1 + w forgotten?")


def test_a_subclass_is_not_read_by_its_name():
    class Nemotron(nn.LayerNorm):
        """Its gain is 1 + weight."""

    with pytest.raises(TypeError, match="got Nemotron"):
        ng.Ellipsoid.of(Nemotron(4))
    with pytest.raises(ValueError, match="expected one normalised axis"):
        ng.Ellipsoid.of(nn.LayerNorm((2, 3)))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (dict(weight=torch.tensor([])), ValueError, "weight: expected shape"),
        (dict(weight=torch.tensor([1.0, torch.nan])), ValueError, "weight: expected finite numbers, got 1"),
        (dict(weight=[1.0, 2.0]), TypeError, "weight: expected a floating-point tensor, got list"),
        (dict(weight=torch.ones(3), bias=torch.ones(2)), ValueError, r"bias: expected shape \(3,\)"),
        (dict(weight=torch.ones(3), bias=torch.full((3,), torch.inf)), ValueError, "bias: expected finite"),
    ],
)
def test_bad_input(arguments, error, words):
    with pytest.raises(error, match=words):
        ng.Ellipsoid(**arguments)


def test_more_axes_than_there_are():
    body = ng.Ellipsoid(torch.ones(5))
    for k in (-1, 5):
        with pytest.raises(ValueError, match=f"k: expected 0 to 4, the dimension of the ellipsoid, got {k}"):
            body.axes(k)
    with pytest.raises(ValueError, match=r"y: expected shape \(\.\.\., 5\), got \(3,\)"):
        body.radius(torch.ones(3))
    with pytest.raises(TypeError, match="y: expected a floating-point dtype"):
        body.radius(torch.ones(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="n: expected at least 0, got -1"):
        body.sample(-1)
