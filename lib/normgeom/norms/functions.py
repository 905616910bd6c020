"""LayerNorm and RMSNorm, written so that the code is the formula.

Every function takes ``(..., d)`` and normalises the last axis.  Statistics and the affine part are computed in at least
float32 (float64 stays float64) and the result is rounded once, to the input's dtype; gradients with respect to gain and
bias are summed in at least float32 too.  In plain eager mode :mod:`normgeom.norms.kernels` does the work, and on a GPU
the host does not wait for it.  During compilation, inside ``torch.func`` and in forward mode the formula itself runs,
so that ``vmap``, ``jvp`` in ``jvp``, double backward and ``torch.compile(fullgraph=True)`` work.
"""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

from torch import Tensor, nn

from normgeom.norms.formula import affine, center, rstd, upcast

try:
    from normgeom.norms.kernels import layer_norm as fast_layer_norm
    from normgeom.norms.kernels import rms_norm as fast_rms_norm
except ImportError:  # no such file, or a torch without the names that it uses
    fast_layer_norm = fast_rms_norm = lambda *_: None


class LayerNormSteps(NamedTuple):
    """The results of the four sub-steps of LayerNorm, each of shape ``(..., d)``."""

    centered: Tensor
    normalized: Tensor
    scaled: Tensor
    output: Tensor


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    r"""Layer normalization, :math:`\gamma\odot\Pi x/\sqrt{\sigma^2+\varepsilon}+\beta` (eq-layer-norm).

    Args:
        x: ``(..., d)``, floating point.
        weight: the gain γ, ``(d,)``; ones if None.
        bias: the bias β, ``(d,)``; zeros if None.
        eps: ε ≥ 0, added to the variance inside the root; in squared units of ``x``.

    Returns:
        ``(..., d)`` in the dtype of ``x``.  A row whose entries are all equal gives β, up to the rounding of
        its mean, or NaN if ``eps`` is 0.

    Raises:
        TypeError: ``x``, ``weight`` or ``bias`` is not a floating-point tensor, or ``eps`` is not a number.
        ValueError: a last dimension is wrong, or ``eps`` is negative or NaN.

    On a CPU, inputs of 300,000 entries or more stay accurate for any mean, because a large mean is subtracted twice;
    so do all inputs inside transforms.  Elsewhere torch's kernel subtracts the mean once, and the rounding error of
    the mean remains in the result (claim-large-means).  On a CPU, one row with a mean above 8 standard deviations
    changes how all rows of such a large input are computed, so a row's bits can depend on its batch (claim-batch).
    Squares leave the range of float32 for entries beyond about 1e19 and, with ``eps=0``, below about 1e-19.
    Derivatives of every order are correct; torch's own are correct only up to the second (claim-third-derivative).

    Source: Ba, Kiros and Hinton (2016).

    Example:
        >>> import torch, normgeom as ng
        >>> ng.layer_norm(torch.tensor([0.0, 2.0, 0.0, 2.0]), eps=0.5625)  # mean 1, variance 1, 1 + 0.5625 = 1.25²
        tensor([-0.8000,  0.8000, -0.8000,  0.8000])
    """
    fast = fast_layer_norm(x, weight, bias, eps)
    return layer_norm_steps(x, weight, bias, eps).output if fast is None else fast


def layer_norm_steps(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> LayerNormSteps:
    r"""The four sub-steps of :func:`layer_norm`: centre, normalise, scale and shift, accurate for any mean.

    ``centered`` is :math:`\Pi x`, ``normalized`` :math:`n=\Pi x/\sqrt{\sigma^2+\varepsilon}`, ``scaled``
    :math:`\gamma\odot n` and ``output`` :math:`\gamma\odot n+\beta`, each ``(..., d)`` in the dtype of ``x``.
    Arguments and errors are those of :func:`layer_norm`.

    Source: Riechers (2024), who counts the same four sub-steps.

    Example:
        >>> import torch, normgeom as ng
        >>> steps = ng.layer_norm_steps(torch.tensor([0.0, 2.0]), bias=torch.tensor([5.0, 5.0]), eps=0.0)
        >>> steps.centered, steps.output
        (tensor([-1.,  1.]), tensor([4., 6.]))
    """
    check_arguments(x, weight, bias, eps)
    centered = center(upcast(x))
    normalized = centered * rstd(centered, eps)
    scaled = affine(normalized, weight, None)
    steps = centered, normalized, scaled, affine(scaled, None, bias)
    return LayerNormSteps(*(step.to(x.dtype) for step in steps))


def rms_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-6, unit_offset: bool = False
) -> Tensor:
    r"""Root-mean-square normalization, :math:`\gamma\odot x/\sqrt{\overline{x^2}+\varepsilon}+\beta` (eq-rms-norm).

    Args:
        x, weight, bias, eps: as for :func:`layer_norm`, which also describes the result and the errors.
        unit_offset: if True, the gain is ``1 + weight``, as in Gemma; without a ``weight`` this is a ValueError.

    Models give RMSNorm no bias.  On a CPU, inputs of 262,144 entries or more are computed in blocks of rows, so a
    row's bits can differ from those in a smaller batch (claim-batch).

    Source: Zhang and Sennrich (2019).

    Example:
        >>> import torch, normgeom as ng
        >>> ng.rms_norm(torch.tensor([3.0, 21.0]), eps=99.0)  # mean square 225, 225 + 99 = 18²
        tensor([0.1667, 1.1667])
    """
    if unit_offset:
        check_arguments(x, weight, bias, eps)
        if weight is None:
            raise ValueError("unit_offset=True adds 1 to the weight, but weight is None")
        return rms_norm(x, upcast(weight) + 1, bias, eps)
    fast = fast_rms_norm(x, weight, bias, eps)
    if fast is not None:
        return fast
    check_arguments(x, weight, bias, eps)
    wide = upcast(x)
    return affine(wide * rstd(wide, eps), weight, bias).to(x.dtype)


def check_arguments(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
    """Raise an error that names the argument unless a norm accepts these arguments."""
    check_floating("x", x)
    d = x.shape[-1:]
    if not any(d):
        raise ValueError(f"x: expected shape (..., d) with d >= 1, got {tuple(x.shape)}")
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None:
            check_floating(name, value)
            if value.shape != d:
                said = f"expected shape {tuple(d)}, the last dimension of x, got {tuple(value.shape)}"
                raise ValueError(f"{name}: {said}")
    _check_eps(eps)


def check_floating(name: str, value: object) -> None:
    """Raise a TypeError that names the argument unless ``value`` is a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a floating-point tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name}: expected a floating-point dtype, got {value.dtype}")


def check_size(d: object) -> None:
    """Raise a ValueError unless ``d`` is a positive number of features."""
    if not isinstance(d, Integral) or d < 1:
        raise ValueError(f"d: expected one positive size, got {d!r}")


def _check_eps(eps: float) -> None:
    if not isinstance(eps, (int, float)):
        raise TypeError(f"eps: expected a number, got {type(eps).__name__}")
    if not eps >= 0:
        raise ValueError(f"eps: expected a number >= 0, got {eps}")


class LayerNorm(nn.LayerNorm):
    """:func:`layer_norm` as a module: a ``torch.nn.LayerNorm`` over one axis ``d``, with its arguments and parameters.

    Raises:
        ValueError: ``d`` is not one positive size, or ``eps`` is negative or NaN.

    Example:
        >>> import torch, normgeom as ng
        >>> norm = ng.LayerNorm(8, bias=False)
        >>> norm(torch.randn(2, 3, 8)).shape, list(norm.state_dict())
        (torch.Size([2, 3, 8]), ['weight'])
    """

    def __init__(self, d, eps=1e-5, *settings, **named):
        super().__init__(_one_axis(d, eps), eps, *settings, **named)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """:func:`rms_norm` as a module, a ``torch.nn.RMSNorm`` over one axis ``d``; errors are those of :class:`LayerNorm`.

    Example:
        >>> import normgeom as ng
        >>> ng.RMSNorm(8, eps=1e-5)
        RMSNorm((8,), eps=1e-05, elementwise_affine=True)
    """

    def __init__(self, d, eps=1e-6, *settings, **named):
        super().__init__(_one_axis(d, eps), eps, *settings, **named)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, None, self.eps)


def _one_axis(d: object, eps: float) -> int:
    if isinstance(d, (list, tuple)) and len(d) == 1:
        d = d[0]
    check_size(d)
    _check_eps(eps)
    return int(d)
