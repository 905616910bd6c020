"""What a training's tables say over its course: angles beside an exact null, and the shape of each norm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.training.twins import TITLES, adamw, warmup_cosine

QUANTILES = {"low": 0.05, "median": 0.5, "high": 0.95}
_PLACE = ["step", "site", "side"]


def read_twins(folder: str | os.PathLike, name: str) -> dict[str, pd.DataFrame]:
    """One of the tables that ``normgeom train`` wrote to a folder, of either twin, by what the text calls its norm.

    Args:
        name: ``"curve"``, ``"loss"``, ``"survey"``, ``"gains"`` or ``"surface"``.

    Raises:
        ValueError: the folder holds no such table.
    """
    paths = {TITLES[norm]: Path(folder) / norm / f"{name}.parquet" for norm in ("layer", "rms")}
    for path in paths.values():
        if not path.is_file():
            raise ValueError(f"folder: expected what normgeom train wrote, there is no {path}")
    return {title: pd.read_parquet(path) for title, path in paths.items()}


def beside_signs(survey: pd.DataFrame, null: str = "signs_") -> pd.DataFrame:
    """Angles to each direction that is no null, beside the occupancies of the null's directions at the same place.

    Args:
        survey: rows of :meth:`normgeom.Survey.table` with a column ``step``, of one model, with several directions
            whose names begin with ``null``.

    Returns:
        one row a (step, site, side, direction), first positions left out: ``mean_deg``, ``std_deg``, ``occupancy``,
        ``mean_norm``; the null's quantiles ``low`` (5 %), ``median`` and ``high`` (95 %) of the occupancy; and
        ``rank``, 1 where no direction of the null has a smaller occupancy (cor-sign-null).

    Raises:
        ValueError: the survey has no direction of the null.
    """
    rows = survey[survey.positions == "rest"]
    drawn = rows.direction.str.startswith(null)
    if not drawn.any():
        raise ValueError(f"null: expected directions whose names begin with {null!r} in the survey, got none")
    groups = rows[drawn].groupby(_PLACE, sort=False).occupancy
    band = pd.DataFrame({name: groups.quantile(q) for name, q in QUANTILES.items()} | {"null": groups.agg(list)})
    columns = [*_PLACE, "direction", "mean_deg", "std_deg", "occupancy", "mean_norm"]
    table = rows.loc[~drawn, columns].merge(band, left_on=_PLACE, right_index=True)
    pairs = zip(table.null, table.occupancy, strict=True)
    table["rank"] = [1 + sum(other < mine for other in of_null) for of_null, mine in pairs]
    return table.drop(columns="null").reset_index(drop=True)


def off_uniform(ranks: Sequence[int], most: int) -> float:
    """The largest distance between the distribution function of ranks among 1 to ``most`` and the uniform one.

    That is Kolmogorov and Smirnov's statistic, for a distribution with steps (cor-sign-null says that it is uniform).

    Raises:
        ValueError: a rank is not between 1 and ``most``, or there is none.
    """
    found = np.asarray(ranks)
    if found.size == 0 or found.min() < 1 or found.max() > most:
        raise ValueError(f"ranks: expected some between 1 and {most}, got {found.tolist()}")
    places = np.arange(1, most + 1)
    # In whole numbers: equal distances must come out equal, or ties are counted by their rounding.
    apart = most * (found[:, None] <= places).sum(0) - found.size * places
    return float(np.abs(apart).max() / (found.size * most))


def chance_of(distance: float, count: int, most: int, draws: int = 10_000, seed: int = 0) -> float:
    """How often ``count`` uniform ranks from 1 to ``most`` are off by ``distance`` or more (:func:`off_uniform`).

    Raises:
        ValueError: ``count`` or ``most`` is below 1.
    """
    if min(count, most) < 1:
        raise ValueError(f"count, most: expected at least 1, got {count} and {most}")
    drawn = np.random.default_rng(seed).integers(1, most + 1, (draws, count))
    return float(np.mean([off_uniform(ranks, most) >= distance for ranks in drawn]))


def shapes(gains: pd.DataFrame, centered: bool, top: int = 8) -> pd.DataFrame:
    """The ellipsoid of each norm over the course of training, and how far its longest axes are those of the end.

    Args:
        gains: ``step``, ``site``, ``coordinate``, ``weight`` as :func:`normgeom.training.stages.measure_stage` gives
            them.
        centered: True for LayerNorm.
        top: how many of the longest axes are compared.

    Returns:
        one row a (step, site), steps at which all gains are equal left out, for their axes are any: the gain's
        ``smallest``, ``mean``, ``largest`` and ``spread`` (standard deviation); ``axis_ratio``, the longest semi-axis
        over the shortest; ``correlation`` of the gain with that of the last step; ``overlap``, ‖VᵀW‖²/top for the
        longest axes V at the step and W at the end, 1 if they span the same space and top/d by chance; ``pointing``,
        the mean over these axes of the largest squared entry, 1 for an axis along a coordinate.
    """
    last = gains[gains.step == gains.step.max()].set_index("site")
    rows = []
    for (step, site), group in gains.groupby(["step", "site"], sort=False):
        weight = torch.tensor(group.weight.to_numpy(np.float64))
        if weight.min() == weight.max():
            continue
        end = torch.tensor(last.loc[[site], "weight"].to_numpy(np.float64))
        image = Ellipsoid(weight, centered=centered)
        axes = image.axes(top)
        rows.append(
            dict(
                step=step,
                site=site,
                smallest=float(weight.min()),
                mean=float(weight.mean()),
                largest=float(weight.max()),
                spread=float(weight.std(unbiased=False)),
                axis_ratio=float(image.semi_axes[0] / image.semi_axes[-1]),
                correlation=float(torch.corrcoef(torch.stack([weight, end]))[0, 1]),
                overlap=float((axes.T @ Ellipsoid(end, centered=centered).axes(top)).square().sum() / top),
                pointing=float(axes.square().amax(0).mean()),
            )
        )
    return pd.DataFrame(rows)


def paired(losses: pd.DataFrame, of: str = "RMSNorm", less: str = "LayerNorm") -> pd.Series:
    """The loss of one norm less that of another, by ``rate`` and ``seed``, of those trained with both.

    Args:
        losses: ``loss``, ``norm``, ``rate``, ``seed``, one row a run.

    Raises:
        ValueError: there is no such pair, or a run is there twice.
    """
    by_seed = losses.pivot(index=["rate", "seed"], columns="norm", values="loss")
    if not {of, less} <= {*by_seed.columns}:
        raise ValueError(f"of, less: expected two of {', '.join(by_seed.columns)}, got {of!r} and {less!r}")
    return (by_seed[of] - by_seed[less]).dropna()


def noise_walks(norms: int, width: int, updates: int, stages: Sequence[int], seed: int) -> pd.DataFrame:
    """Gains that AdamW moves on noise instead of gradients: what agreement with the end is worth without any text.

    All begin at 1; each update has its own independent normal numbers for a gradient, and rate, warm-up, cosine and
    moments are those of the recorded runs (:func:`normgeom.training.twins.adamw` at a peak of 0.001; gains do not
    decay).

    Args:
        stages: after which updates the gains are noted, each from 1 to ``updates``.

    Returns:
        the columns of :func:`normgeom.training.stages.measure_stage`'s gains that :func:`shapes` reads.

    Raises:
        ValueError: there is no stage, or one that is no update.
    """
    if not stages or not all(1 <= stage <= updates for stage in stages):
        raise ValueError(f"stages: expected updates from 1 to {updates}, got {list(stages)}")
    gains = torch.nn.ParameterList([torch.ones(norms * width)])
    (gain,), rule = gains, adamw(gains, 0.001)
    schedule = warmup_cosine(rule, updates)
    generator, noted = torch.Generator().manual_seed(seed), []
    for update in range(1, updates + 1):
        gain.grad = torch.randn(gain.shape, generator=generator)
        rule.step()
        schedule.step()
        if update in stages:
            weights = gain.detach().view(norms, width).numpy().copy()
            noted += [dict(step=update, site=str(i), weight=row) for i, row in enumerate(weights)]
    noted = pd.DataFrame(noted).assign(coordinate=[range(width)] * len(noted))
    return noted.explode(["coordinate", "weight"], ignore_index=True)
