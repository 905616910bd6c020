"""Made-up records for the tests of claims, whose answers are known beforehand."""

import pandas as pd
from normgeom_lab.common.recording import record

LOW, MEDIAN, HIGH = 0.6, 1.2, 1.5
BAND = dict(low=LOW, median=MEDIAN, high=HIGH)
STEPS = (0, 6, 60, 300, 600)
SEEDS = (0, 1, 2)
NORMS = ("layer", "rms")


def surveyed(times, **columns):
    """A model's table; at each norm the occupancy of 1 is ``times`` the null's 95 % quantile, of others half of it."""
    rows = [
        dict(site=f"h.{number}.ln", direction=direction, mean_deg=degrees, occupancy=HIGH * factor)
        for number, of_uniform in enumerate(times)
        for direction, degrees, factor in (("uniform", 92.0, of_uniform), ("random_a", 89.0, 0.5))
    ]
    about = dict(side="in", kind="layer", tokens=5000, model="toy", drawn=100, **BAND)
    return pd.DataFrame(rows).assign(**{**about, **columns})


def angles(times=lambda seed, step, site: 0.5, steps=STEPS, seeds=SEEDS):
    """A training's angles; ``times(seed, step, site)`` is the occupancy of 1 over the null's 95 % quantile."""
    rows = [
        dict(step=step, site=site, direction=direction, occupancy=HIGH * factor, norm=norm, seed=seed)
        for norm in NORMS
        for seed in seeds
        for step in steps
        for site in ("h.0.ln", "ln_f")
        for direction, factor in (("uniform", times(seed, step, site)), ("random_a", 0.5))
    ]
    return pd.DataFrame(rows).assign(side="in", mean_deg=93.0, **BAND, rank=7, drawn=39)


def losses(apart, of_layer=3.0):
    """Final losses of pairs; RMSNorm's is ``apart`` times LayerNorm's mean higher, one number a seed."""
    rows = [
        (of_layer + rms * share * of_layer, norm, seed)
        for seed, share in enumerate(apart)
        for rms, norm in enumerate(NORMS)
    ]
    return pd.DataFrame(rows, columns=["loss", "norm", "seed"])


def forms(overlap=lambda seed: 1.0, near=lambda seed, site: 1.0, steps=STEPS[1:], sites=9, width=128):
    """Shapes over a training: overlaps of each seed before the end, and shares near the surface of each norm."""
    rows = [
        dict(step=step, site=f"ln.{site}", overlap=overlap(seed), near=near(seed, site), norm=norm, seed=seed)
        for norm in NORMS
        for seed in SEEDS
        for step in steps
        for site in range(sites)
    ]
    return pd.DataFrame(rows).assign(q05=0.98, width=width)


def write_model(folder, name, times=(0.5, 0.6), kind="layer"):
    """The two records of a model."""
    table = pd.concat([surveyed(times, side=side, kind=kind) for side in ("in", "out")])
    table = table.drop(columns=[*BAND, "model", "drawn"])
    places = table[["site", "side"]].drop_duplicates()
    others = pd.concat([table.assign(positions="first", occupancy=60.0), table.assign(positions="rest")])
    nulls = pd.concat([places.assign(**BAND, null="random_"), places.assign(low=0, median=0, high=0, null="signs_")])
    record(f"angles-{name}", others, "Angles.", folder, model=name)
    record(f"nulls-{name}", nulls, "100 directions of each null.", folder, model=name)


def write_pair(folder, size, parts=("angles", "loss", "curve", "forms")):
    """The records of a pair in which nothing happens."""
    tables = dict(
        angles=angles().drop(columns="drawn"),
        loss=losses([0.001, 0.002, -0.001]),
        curve=pd.DataFrame([(norm, 0, step, 3.0) for norm in NORMS for step in STEPS]),
        forms=forms().drop(columns="width"),
    )
    tables["curve"].columns = ["norm", "seed", "step", "loss"]
    for part in parts:
        record(f"pair-{size}-{part}", tables[part], "Beside 39 random sign vectors.", folder, model="GPT-2, d = 128")
