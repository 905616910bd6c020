"""What a sentence encoder loses when gains of its norms are set to zero."""

from pathlib import Path

import click
import normgeom as ng
import pandas as pd
import torch
from normgeom.records import record
from normgeom.surgery.silencing import ORDERS, silenced, silencing_order
from torch import nn
from tqdm.auto import tqdm

from records.texts import model_and_windows, over_a_text

COUNTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)


@click.command()
@over_a_text
@click.option("--seed", default=0, help="Of the random coordinates.")
def main(model: str, name: str, text: Path, corpus: str, windows: int, length: int, seed: int) -> None:
    """Write zeroed-NAME: how far mean-pooled embeddings turn when the gains of k coordinates are zero."""
    network, ids, words = model_and_windows(model, text, windows, length)
    sites = ng.find_norms(network)
    before = _embed(network, ids)
    ranked = {order: silencing_order(sites, order, seed) for order in ORDERS}
    rows = []
    cases = [(where, order, k) for where in ("last", "all") for order in ORDERS for k in COUNTS]
    for where, order, k in tqdm(cases):
        chosen = sites[-1:] if where == "last" else sites
        with silenced(chosen, {name: index[:k] for name, index in ranked[order].items()}):
            cosine = nn.functional.cosine_similarity(before, _embed(network, ids), dim=-1)
        rows.append((where, order, k, float(cosine.mean()), float(cosine.quantile(0.05))))
    path = record(
        f"zeroed-{name}",
        pd.DataFrame(rows, columns=["norms", "coordinates", "k", "mean_cosine", "q05_cosine"]),
        "Cosine between mean-pooled embeddings before and after the gains of k coordinates were set to zero.",
        model=name,
        corpus=corpus,
        windows=words,
        seed=seed,
    )
    click.echo(path)


@torch.no_grad()
def _embed(network: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return torch.cat([network(part).last_hidden_state.mean(1) for part in ids.split(64)])
