"""Chapter 7's measurement of a model on a text, with three nulls."""

from pathlib import Path

import click
import normgeom as ng
import pandas as pd
from normgeom.survey.directions import nulls
from normgeom_lab.common.pictures import NULLS, null_band
from normgeom_lab.common.recording import record

from records.texts import model_and_windows, over_a_text


@click.command()
@over_a_text
@click.option("--drawn", default=100, help="Directions of each null.")
@click.option("--seed", default=0, help="Of all directions.")
def main(model: str, name: str, text: Path, corpus: str, windows: int, length: int, drawn: int, seed: int) -> None:
    """Write angles-NAME, the table of a survey of MODEL, and nulls-NAME, what chance shows beside it."""
    network, ids, words = model_and_windows(model, text, windows, length)
    batches = ids.split(32)
    named = ["uniform", "random_a", "random_b", *nulls(drawn)]
    survey = ng.Survey(network, named, seed, pilot=batches[0]).run(batches)
    click.echo(write_angles(name, survey, model=name, corpus=corpus, windows=words, seed=seed))


def write_angles(name: str, survey: ng.Survey, **options: object) -> Path:
    """Write angles-NAME and nulls-NAME of a survey with directions of each null; options as for ``record``."""
    table, named = survey.table(), ("uniform", "random_a", "random_b")
    shown = table[table.direction.isin(named) & (table.tokens > 0)]
    if shown.drop_error.isna().any():  # an RMSNorm has no mean to drop, and records have no empty cells
        shown = shown.drop(columns="drop_error")
    drawn = sum(direction.startswith("signs_") for direction in survey.directions)
    record(
        f"angles-{name}",
        shown,
        "Survey.table(): angles in degrees between hidden vectors and the uniform vector, and two random directions, "
        "before and after every norm.",
        **options,
    )
    bands = {(side, null): null_band(table, side, null).reset_index() for side in ("in", "out") for null in NULLS}
    return record(
        f"nulls-{name}",
        pd.concat([band.assign(side=side, null=null) for (side, null), band in bands.items()]),
        f"Occupancy of {drawn} directions of each null, 5 %, 50 % and 95 % quantiles over the directions, position 0 "
        "left out.  random: Gaussian; signs: entries of one size with random signs; matched: sums with random signs "
        "of the unit vectors of the first batch at that side of that norm.",
        **options,
        excluded=int(survey.excluded()[["nonfinite", "zero"]].sum().sum()),
    )
