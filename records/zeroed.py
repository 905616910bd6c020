"""What a sentence encoder loses when gains of its norms are set to zero."""

from pathlib import Path

import click
import normgeom as ng
import pandas as pd
import torch
from normgeom.records import record
from torch import nn
from tqdm.auto import tqdm

from records.texts import model_and_windows, over_a_text

COUNTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
ORDERS = ("smallest", "random", "largest")


@click.command()
@over_a_text
@click.option("--seed", default=0, help="Of the random coordinates.")
def main(model: str, name: str, text: Path, corpus: str, windows: int, length: int, seed: int) -> None:
    """Write zeroed-NAME: how far mean-pooled embeddings turn when the gains of k coordinates are zero."""
    network, ids, words = model_and_windows(model, text, windows, length)
    sites = ng.find_norms(network)
    before = _embed(network, ids)
    generator = torch.Generator().manual_seed(seed)
    shuffled = {site.name: torch.randperm(site.dim, generator=generator) for site in sites}
    rows = []
    cases = [(where, order, k) for where in ("last", "all") for order in ORDERS for k in COUNTS]
    for where, order, k in tqdm(cases):
        chosen = sites[-1:] if where == "last" else sites
        kept = [site.module.weight.detach().clone() for site in chosen]
        for site in chosen:
            rising = site.weight.abs().argsort()
            index = {"smallest": rising, "largest": rising.flip(0), "random": shuffled[site.name]}[order][:k]
            with torch.no_grad():
                site.module.weight[index] = 0
        cosine = nn.functional.cosine_similarity(before, _embed(network, ids), dim=-1)
        rows.append((where, order, k, float(cosine.mean()), float(cosine.quantile(0.05))))
        for site, weight in zip(chosen, kept, strict=True):
            site.module.weight.data.copy_(weight)
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
