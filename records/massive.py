"""The largest coordinates of a model's normalised vectors, and what its gains do with them."""

from pathlib import Path

import click
import normgeom as ng
import pandas as pd
import torch
from normgeom_lab.common.recording import record
from torch import Tensor

from records.texts import model_and_windows, over_a_text

SILENT = 1e-6  # a gain below counts as zero


@click.command()
@over_a_text
def main(model: str, name: str, text: Path, corpus: str, windows: int, length: int) -> None:
    """Write massive-NAME: a row a LayerNorm of MODEL, over all tokens of the windows."""
    network, ids, words = model_and_windows(model, text, windows, length)
    sites = [site for site in ng.find_norms(network) if site.kind == "layer"]
    vectors: dict[str, list[Tensor]] = {site.name: [] for site in sites}

    def keep(site: ng.NormSite, x: Tensor, _: Tensor) -> None:
        vectors[site.name].append(ng.layer_norm(x.reshape(-1, site.dim), eps=site.eps))

    with ng.watch(network, sites, keep), torch.no_grad():
        for part in ids.split(64):
            network(part)
    path = record(
        f"massive-{name}",
        pd.DataFrame([_row(site, torch.cat(vectors[site.name])) for site in sites]),
        "Normalised vectors n of every norm: the coordinate with the largest root mean square over tokens, its gain "
        "and the gain's rank by size (1 the smallest), Spearman's correlation of |gain| and root mean square over all "
        f"coordinates, the share of ‖n‖² in coordinates with |gain| below {SILENT:g}, and how far out outputs lie when "
        "these gains are taken for zero (1 is the surface; quantiles over tokens).",
        model=name,
        corpus=corpus,
        windows=words,
    )
    click.echo(path)


def _row(site: ng.NormSite, n: Tensor) -> dict[str, object]:
    size, rms = site.weight.abs(), n.square().mean(0).sqrt()
    largest, silent = int(rms.argmax()), size < SILENT
    radius = ng.Ellipsoid(site.weight.masked_fill(silent, 0)).radius((n * site.weight).masked_fill(silent, 0))
    return {
        "site": site.name,
        "coordinate": largest,
        "rms": float(rms[largest]),
        "median_rms": float(rms.median()),
        "gain": float(site.weight[largest]),
        "gain_rank": int((size <= size[largest]).sum()),
        "correlation": float(pd.Series(size.numpy()).rank().corr(pd.Series(rms.numpy()).rank())),
        "silent_share": float(n[:, silent].square().sum() / n.square().sum()),
        **{f"radius_q{q:02d}": float(radius.quantile(q / 100)) for q in (5, 50, 95)},
    }
