"""What can be read back from a norm's output: decoders fitted by least squares, and the scale that ε lets through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normgeom.models.calls import evaluating, forward
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.watch import watch
from normgeom.norms.functions import check_floating, layer_norm

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Rows = Float[Tensor, "rows d"]
    Ids = Int[Tensor, "batch length"]

READ = ("mean", "log σ")


def random_layer(d: int, width: int, generator: torch.Generator) -> Callable[[Rows], Rows]:
    """GELU of a random linear map: the hidden layer of a network of which only the output is trained.

    Raises:
        ValueError: ``d`` or ``width`` is below 1.
    """
    for name, value in (("d", d), ("width", width)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    weight = torch.randn(d, width, generator=generator, dtype=torch.float64) / d**0.5
    return lambda rows: F.gelu(rows @ weight)


def held_out_scores(seen: Rows, targets: Mapping[str, Rows]) -> dict[str, float]:
    """How well an affine decoder of what is seen predicts each target on rows that it was not fitted to.

    The decoder is fitted by least squares to the first half of the rows and judged on the second by
    R² = 1 − Σ‖t − t̂‖²/Σ‖t − t̄‖².  With ``seen`` a :func:`random_layer` of the outputs it is a small network.

    Args:
        seen: ``(rows, d)``, floating point; all targets are read from the same.
        targets: ``(rows, k)`` for each name, in the dtype of ``seen``.

    Returns:
        R² for each name; below 0 where the mean of the second half would have been the better guess.

    Raises:
        TypeError: ``seen`` or a target is not a floating-point tensor.
        ValueError: ``seen`` is not a matrix with two rows, there is no target, or one has another number of rows.
    """
    check_floating("seen", seen)
    if seen.dim() != 2 or len(seen) < 2:
        raise ValueError(f"seen: expected shape (rows, d) with at least two rows, got {tuple(seen.shape)}")
    if not targets:
        raise ValueError("targets: expected at least one, got none")
    for name, target in targets.items():
        check_floating(f"targets[{name!r}]", target)
        if target.dim() != 2 or len(target) != len(seen):
            raise ValueError(f"targets[{name!r}]: expected shape ({len(seen)}, k), got {tuple(target.shape)}")
    half = len(seen) // 2
    inputs, wanted = F.pad(seen, (0, 1), value=1.0), torch.cat([*targets.values()], -1)
    decoder = torch.linalg.lstsq(inputs[:half], wanted[:half], driver="gelsd").solution
    columns = [target.shape[-1] for target in targets.values()]
    guesses, truths = (t.split(columns, -1) for t in (inputs[half:] @ decoder, wanted[half:]))
    pairs = zip(targets, guesses, truths, strict=True)
    return {name: _r_squared(guess, truth) for name, guess, truth in pairs}


def _r_squared(guess: Tensor, target: Tensor) -> float:
    residual = (guess - target).square().sum()
    return 1 - float(residual / (target - target.mean(0)).square().sum())


def read_norms(model: nn.Module, batches: Iterable[Ids]) -> pd.DataFrame:
    """At each LayerNorm of a language model, how well mean and log σ of its input can be read from its output.

    Position 0, where token embeddings meet one position, is left out (claim-read-back).

    Args:
        model: with ``nn.LayerNorm`` or ours, ``(batch, length, d)``; runs in evaluation mode, without gradients.
        batches: token ids, of length 2 at least.

    Returns:
        one row a norm, by name, in the order of use: :func:`held_out_scores` for ``mean`` and ``log σ`` in float64, and
        ``spread``, the standard deviation of the means over the median σ.

    Raises:
        ValueError: there is no norm, or no batch.
    """
    batches = list(batches)
    if not batches:
        raise ValueError("batches: expected at least one, got none")
    sites = find_norms(model, batches[0])
    if not sites:
        raise ValueError(f"model: expected at least one norm, got a {type(model).__name__} without")
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def keep(site: NormSite, x: Tensor, y: Tensor) -> None:
        seen.setdefault(site.name, []).append(tuple(v[:, 1:].flatten(0, 1).double() for v in (x, y)))

    with watch(model, sites, keep), evaluating(model):
        for ids in batches:
            forward(model, ids)
    rows = {name: _read(*map(torch.cat, zip(*pairs, strict=True))) for name, pairs in seen.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def _read(x: Tensor, y: Tensor) -> dict[str, float]:
    mean, sigma = x.mean(-1, keepdim=True), x.std(-1, correction=0, keepdim=True)
    scores = held_out_scores(y, dict(zip(READ, (mean, sigma.log()), strict=True)))
    return {**scores, "spread": float(mean.std() / sigma.median())}


def scale_error(
    dtype: torch.dtype,
    sigma: float,
    generator: torch.Generator,
    d: int = 768,
    eps: float = 1e-5,
    rows: int = 500,
    given: torch.dtype | None = None,
) -> float:
    """The median relative error of σ read from the length of LayerNorm's output, at gain 1 and bias 0.

    σ² = ερ²/(1 − ρ²) with ρ = ‖n‖/√d (prop-fibres), on Gaussian vectors rounded to a format (claim-ladder).

    Args:
        dtype: the format of the output.
        sigma: the standard deviation of the entries; what is read is compared with each row's own σ.
        generator: of the vectors.
        d: features.
        eps: ε > 0.
        rows: how many.
        given: the format of the input, ``dtype`` if None.

    Returns:
        infinity where half of the outputs or more are too long for any σ.

    Raises:
        ValueError: ``sigma`` or ``eps`` is not positive, ``d`` below 2, or ``rows`` below 1.
    """
    for name, value in (("sigma", sigma), ("eps", eps)):
        if not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    for name, value, least in (("d", d, 2), ("rows", rows, 1)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    drawn = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    x = (sigma * drawn).to(given or dtype)
    square = layer_norm(x, eps=eps).to(dtype).double().square().mean(-1)  # ρ²
    found = torch.where(square < 1, torch.sqrt(eps * square / (1 - square)), torch.inf)
    return float((found / x.double().std(-1, correction=0) - 1).abs().median())
