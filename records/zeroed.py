"""What a sentence encoder loses when gains of its norms are set to zero."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import click
import normgeom as ng
import pandas as pd
import torch
from normgeom_lab.common.recording import record
from normgeom_lab.hyperellipsoid import ORDERS, silenced, silencing_order
from torch import nn
from tqdm.auto import tqdm

from records.texts import model_and_windows, over_a_text

COUNTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
DRAWN = (2, 32)  # how many coordinates each further draw of random ones silences


@click.command()
@over_a_text
@click.option("--seed", default=0, help="Of the random coordinates; the first of the draws.")
@click.option("--draws", default=20, help="How many times random coordinates of every norm are drawn.")
@click.option("--part", type=click.Choice(["orders", "draws"]), help="Only one of the two.  [default: both]")
def main(
    model: str, name: str, text: Path, corpus: str, windows: int, length: int, seed: int, draws: int, part: str | None
) -> None:
    """Write zeroed-NAME and zeroed-draws-NAME: how far embeddings turn when the gains of k coordinates are zero."""
    network, ids, words = model_and_windows(model, text, windows, length)
    sites = ng.find_norms(network)
    before = _embed(network, ids)
    about = dict(model=name, corpus=corpus, windows=words)

    def cosines(chosen: Sequence[ng.NormSite], order: dict[str, torch.Tensor], k: int) -> torch.Tensor:
        with silenced(chosen, {name: index[:k] for name, index in order.items()}):
            return nn.functional.cosine_similarity(before, _embed(network, ids), dim=-1)

    if part != "draws":
        ranked, rows = {order: silencing_order(sites, order, seed) for order in ORDERS}, []
        for where, order, k in tqdm([*product(("last", "all"), ORDERS, COUNTS)]):
            cosine = cosines(sites[-1:] if where == "last" else sites, ranked[order], k)
            rows.append((where, order, k, float(cosine.mean()), float(cosine.quantile(0.05))))
        what = "Cosine between mean-pooled embeddings before and after the gains of k coordinates were set to zero."
        table = pd.DataFrame(rows, columns=["norms", "coordinates", "k", "mean_cosine", "q05_cosine"])
        click.echo(record(f"zeroed-{name}", table, what, **about, seed=seed))
    if part != "orders":
        rows = []
        what = "Mean cosine between mean-pooled embeddings before and after k drawn gains of every norm were zero."
        for k in DRAWN:
            for drawn in tqdm(range(seed, seed + draws), f"{k} gains"):
                rows.append((k, drawn, float(cosines(sites, silencing_order(sites, "random", drawn), k).mean())))
            table = pd.DataFrame(rows, columns=["k", "seed", "mean_cosine"])
            click.echo(record(f"zeroed-draws-{name}", table, what, **about, draws=draws))


@torch.no_grad()
def _embed(network: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return torch.cat([network(part).last_hidden_state.mean(1) for part in ids.split(64)])
