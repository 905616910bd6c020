"""Made-up records for the tests of claims, whose answers are known beforehand."""

import numpy as np
import pandas as pd
from normgeom.claims import Pair
from normgeom.claims.columns import HUB
from normgeom.records import record

LOW, MEDIAN, HIGH = 0.6, 1.2, 1.5
BAND = dict(low=LOW, median=MEDIAN, high=HIGH)
STEPS = (0, 6, 60, 300, 600)
TWINS = ((0, "layer"), (1, "rms"))
CURVE = ("norm", "seed", "step", "loss")
ABOUT = dict(corpus="words", seed=3)


def survey(times, side="in", kind="layer", tokens=5000, **columns):
    """A row a norm and direction: the occupancy of 1 is ``times`` the null's 95 % quantile, of others half of it."""
    rows = [
        dict(
            site=f"h.{number}.ln",
            side=side,
            direction=direction,
            positions="rest",
            kind=kind,
            dim=64,
            tokens=tokens,
            mean_deg=92.0 if direction == "uniform" else 89.0,
            std_deg=7.0,
            occupancy=HIGH * (factor if direction == "uniform" else 0.5),
        )
        for number, factor in enumerate(times)
        for direction in ("uniform", "random_a", "random_b")
    ]
    return pd.DataFrame(rows).assign(**columns)


def surveyed(times, side="in", kind="layer", tokens=5000, model="toy", drawn=100, **columns):
    """:func:`survey` as :func:`normgeom.claims.models` gives it."""
    return survey(times, side, kind, tokens, **{**BAND, "model": model, "drawn": drawn, **columns})


def angles(times, steps=STEPS, sites=("h.0.ln", "ln_f"), seeds=(0, 1, 2), norms=("layer", "rms"), drawn=39):
    """Angles over a training; ``times(seed, step, site)`` is the occupancy of 1 over the null's 95 % quantile."""
    rows = [
        dict(
            step=step,
            site=site,
            side="in",
            direction=direction,
            mean_deg=93.0,
            std_deg=7.0,
            occupancy=HIGH * (times(seed, step, site) if direction == "uniform" else 0.5),
            mean_norm=8.0,
            **BAND,
            rank=7,
            norm=norm,
            seed=seed,
        )
        for norm in norms
        for seed in seeds
        for step in steps
        for site in sites
        for direction in ("uniform", "random_a", "random_b")
    ]
    return pd.DataFrame(rows).assign(drawn=drawn)


def losses(apart, of_layer=3.0):
    """Final losses of pairs; RMSNorm's is ``apart`` times LayerNorm's mean higher, one number a seed."""
    rows = [
        (of_layer + norm * share * of_layer, name, seed) for seed, share in enumerate(apart) for norm, name in TWINS
    ]
    return pd.DataFrame(rows, columns=["loss", "norm", "seed"])


def forms(overlap=lambda seed, step: 1.0, near=lambda seed, site: 1.0, steps=STEPS[1:], seeds=(0, 1, 2), norms=9):
    """Shapes over a training: overlaps of each seed and step, and shares near the surface of each seed and site."""
    rows = [
        dict(
            step=step,
            site=f"ln.{site}",
            correlation=0.5,
            overlap=1.0 if step == max(steps) else overlap(seed, step),
            q05=0.98,
            near=near(seed, site),
            norm=norm,
            seed=seed,
        )
        for _, norm in TWINS
        for seed in seeds
        for step in steps
        for site in range(norms)
    ]
    return pd.DataFrame(rows)


def pair(width=128, **tables):
    """A pair that has some tables."""
    missing = dict.fromkeys(("angles", "loss", "curve", "forms"))
    said = {name: {"model": f"GPT-2, 4 blocks, d = {width}, 4 heads"} for name in tables}
    return Pair(**{**missing, **tables}, provenance=said)


def write_model(folder, name, times=(0.5, 0.6), kind="layer"):
    """The two records of a model."""
    sides = [survey(times, side, kind) for side in ("in", "out")]
    table = pd.concat([rows.assign(positions=place) for rows in sides for place in ("first", "rest")])
    more = dict(q05_deg=80.0, q50_deg=91.0, q95_deg=99.0, mean_abs_cos=0.1, mean_norm=8.0, top_share=0.2)
    if kind == "layer":
        more["drop_error"] = 0.1
    record(f"angles-{name}", table.assign(**more), "Angles.", folder, model=HUB.get(name, name), **ABOUT)
    places = table[["site", "side"]].drop_duplicates()
    bands = [places.assign(**BAND, null=null) for null in ("random_", "signs_")]
    record(
        f"nulls-{name}", pd.concat(bands), "100 directions of each null.", folder, model=HUB.get(name, name), **ABOUT
    )


def write_pair(folder, size, parts=("angles", "loss", "curve", "forms")):
    """The records of a pair in which nothing happens."""
    tables = dict(
        angles=angles(lambda seed, step, site: 0.5).drop(columns="drawn"),
        loss=losses([0.001, 0.002, -0.001]),
        curve=pd.DataFrame([(norm, 0, step, 3.0) for _, norm in TWINS for step in STEPS], columns=list(CURVE)),
        forms=forms(),
    )
    for part in parts:
        note = dict(model="GPT-2, d = 128", corpus="words", seeds=[0, 1, 2])
        record(f"pair-{size}-{part}", tables[part], "Beside 39 random sign vectors.", folder, **note)


def in_dimensions(shares, d, count, generator):
    """Σ d·λ (uᵀe)² for random directions u: occupancies where vectors have the shares λ along orthogonal axes e."""
    u = generator.standard_normal((count, d))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    return d * (u[:, : len(shares)] ** 2) @ np.asarray(shares)
