"""The set of outputs of a norm: an ellipsoid cut by a hyperplane."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from normgeom.geometry import secular
from normgeom.norms import functions
from normgeom.norms.functions import check_floating

KINDS = {nn.LayerNorm: True, functions.LayerNorm: True, nn.RMSNorm: False, functions.RMSNorm: False}


class Ellipsoid:
    r"""The image of LayerNorm or RMSNorm, :math:`\{\gamma\odot n+\beta\}` with n orthogonal to 1 for LayerNorm.

    For ε = 0 and at most one zero gain (none for RMSNorm) the outputs form the surface; for ε > 0 they fill the
    interior and never reach the surface (thm-image).  With more zero gains they fill the interior for every ε.

    Args:
        weight: the gain γ, ``(d,)``, finite, of any sign; zeros are allowed.
        bias: the bias β, ``(d,)``; zeros if None.
        centered: LayerNorm if True, RMSNorm if False.

    Attributes:
        dim: the dimension: d minus the number of zero gains, and for LayerNorm d − 1 without zero gains
            (prop-zero-gains).  If it is 0, every output is β.
        center: β, ``(d,)``.  Like all results it is float64, on the device of ``weight`` (on the CPU if that device has
            no float64).

    Raises:
        TypeError: ``weight`` or ``bias`` is not a floating-point tensor.
        ValueError: the shape of ``weight`` or ``bias`` is wrong, or one of them is empty or not finite.

    Source: Riechers (2024) for LayerNorm with ε and nonzero gains.

    Example:
        >>> import torch, normgeom as ng
        >>> body = ng.Ellipsoid(torch.tensor([2.0, 2.0, 2.0]))  # a circle of radius 2√3, orthogonal to (1, 1, 1)
        >>> body.dim, body.semi_axes.square().round()
        (2, tensor([12., 12.], dtype=torch.float64))
        >>> round(float(body.radius(2 * ng.layer_norm(torch.tensor([0.1, 0.5, 0.9]), eps=0.0))), 5)
        1.0
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, centered: bool = True):
        self.weight = secular.double_vector("weight", weight)
        self.center = torch.zeros_like(self.weight) if bias is None else secular.double_vector("bias", bias)
        if self.center.shape != self.weight.shape:
            expected, got = tuple(self.weight.shape), tuple(self.center.shape)
            raise ValueError(f"bias: expected shape {expected}, that of weight, got {got}")
        self.center = self.center.to(self.weight.device)
        self.centered = centered
        self._zeros = self.weight == 0
        self.dim = len(self.weight) - max(int(self._zeros.sum()), int(centered))
        self._size, shape = secular.scaled(self.weight)
        # LayerNorm removes all of the component along 1, RMSNorm nothing.
        self._matrix = dict(gain=shape, deficit=0.0 if centered else 1.0)

    @classmethod
    def of(cls, norm: nn.Module | object) -> Ellipsoid:
        """The image of a norm of torch or of this library, or of a site that ``find_norms`` found in any model.

        Raises:
            TypeError: ``norm`` is another module, whose parameters may mean something else.
            ValueError: it normalises more than one axis.
        """
        if type(norm) in KINDS:
            if len(norm.normalized_shape) != 1:
                raise ValueError(f"norm: expected one normalised axis, got {tuple(norm.normalized_shape)}")
            weight = torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight
            return cls(weight, getattr(norm, "bias", None), KINDS[type(norm)])
        if getattr(norm, "kind", None) in ("layer", "rms"):
            return cls(norm.weight, norm.bias, norm.kind == "layer")
        raise TypeError(
            f"norm: expected a LayerNorm or RMSNorm of torch or normgeom, got {type(norm).__name__}; "
            "for the norms of a model, pass one of ng.find_norms(model)"
        )

    @cached_property
    def semi_axes(self) -> Tensor:
        r"""The lengths of the semi-axes, ``(dim,)``, descending: √d times the singular values of GΠ (thm-semi-axes)."""
        values = secular.eigvalsh(**self._matrix)
        return (len(values) * values[len(values) - self.dim :].flip(0)).sqrt() * self._size

    def axes(self, k: int | None = None) -> Tensor:
        """Unit vectors along the k longest semi-axes (along all if None), as columns ``(d, k)`` (thm-semi-axes).

        In each vector, the first entry that is at least half as large as the largest is positive.  For axes of equal
        length this is one of many orthonormal choices.

        Raises:
            ValueError: ``k`` is not between 0 and ``dim``.
        """
        count = self.dim if k is None else k
        if not 0 <= count <= self.dim:
            raise ValueError(f"k: expected 0 to {self.dim}, the dimension of the ellipsoid, got {k}")
        return secular.eigh(**self._matrix, largest=count)[1].flip(1)

    @property
    def complement(self) -> Tensor:
        """An orthonormal basis, ``(d, d − dim)``, of the space orthogonal to every output minus β (prop-zero-gains).

        For LayerNorm without zero gains this is the direction of G⁻¹1, not of 1; otherwise the axes of the zero gains.
        """
        if self._zeros.any() or not self.centered:
            return torch.eye(len(self.weight)).to(self.weight)[:, self._zeros]
        normal = self.weight.abs().min() / self.weight
        return (normal / torch.linalg.vector_norm(normal))[:, None]

    def radius(self, y: Tensor) -> Tensor:
        """The relative radius ``(...)`` of outputs ``y`` ``(..., d)``: ‖n‖/√d for the shortest n that gives y
        (thm-image).

        It is 1 on the surface and below 1 inside; NaN rows give NaN.

        Raises:
            TypeError: ``y`` is not a floating-point tensor.
            ValueError: the last dimension is wrong, or rows of ``y`` are not outputs of this norm: they lie outside the
                span of the outputs, or beyond the surface, by more than √ε_machine of the dtype of ``y``, relative to
                the length of n.

        The bound leaves room for kernels that subtract the mean once.  If a gain is so small that the rounding error of
        ``y`` or of the bias, divided by the gain, is not small, the result is noise: pass a weight in which this gain
        is zero.
        """
        check_floating("y", y)
        d = len(self.weight)
        if y.dim() == 0 or y.shape[-1] != d:
            raise ValueError(f"y: expected shape (..., {d}), got {tuple(y.shape)}")
        wide = y.detach().to(self.weight.device).double()
        offset, gained = wide - self.center, ~self._zeros
        n = offset[..., gained] / self.weight[gained]
        tolerance = torch.finfo(y.dtype).eps
        silent = offset[..., self._zeros].abs() > 4 * tolerance * (wide.abs() + self.center.abs())[..., self._zeros]
        squares, total = n.square().sum(-1), n.sum(-1)
        off = silent.any(-1)
        if self.centered and self._zeros.any():
            squares = squares + total**2 / self._zeros.sum()  # the coordinates without gain make up for the sum
        elif self.centered:
            off |= total.abs() > tolerance**0.5 * (d * squares).sqrt()
        off |= squares > d * (1 + tolerance**0.5) ** 2
        if off.any():
            raise ValueError(
                f"y: expected outputs of this norm, but {int(off.sum())} of {off.numel()} rows are not; "
                "y must include the bias, and the gain must be this norm's"
            )
        return (squares / d).sqrt()

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """The images ``(n, d)`` at ε = 0 of ``n`` isotropic Gaussian vectors: uniform directions, mapped by the gain.

        This distribution is not uniform in the area of the surface: points are less dense along long axes.

        Raises:
            ValueError: ``n`` is negative.
        """
        if n < 0:
            raise ValueError(f"n: expected at least 0, got {n}")
        x = torch.randn(n, len(self.weight), generator=generator, dtype=torch.float64)
        norm = functions.layer_norm if self.centered else functions.rms_norm
        return norm(x.to(self.weight.device), self.weight, self.center, eps=torch.finfo(torch.float64).tiny)
