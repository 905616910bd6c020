"""The networks that the book's pages run: the twins of a training, in float16."""

import json
from pathlib import Path

import click
import pandas as pd
import torch
from normgeom.models.sites import find_norms
from normgeom.records import FOLDER
from normgeom.training.twins import load_twin
from normgeom_lab.common.recording import record_tensors
from normgeom_lab.common.typed import BODY, KINDS, NAME, TIED


@click.command()
@click.argument("trained", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the record goes.")
def main(trained: Path, folder: Path) -> None:
    """Write twins: the weights of the twins with LayerNorm and RMSNorm that `normgeom train` left in TRAINED."""
    run = json.loads((trained / "provenance.json").read_text("utf-8"))
    asked = run["asked"]
    tensors, losses = {}, {}
    for kind in KINDS:
        model = load_twin(trained / kind / "model")
        tensors |= {
            f"{kind}.{name.removeprefix(BODY)}": t.half() for name, t in model.state_dict().items() if name != TIED
        }
        losses[kind] = pd.read_parquet(trained / kind / "loss.parquet").loss.iloc[-1]
    beyond = [name for name, t in tensors.items() if not torch.isfinite(t).all()]
    if beyond:
        raise click.ClickException(f"float16 does not hold {', '.join(beyond)}")
    size, corpus = asked["size"], asked["corpus"]
    path = record_tensors(
        NAME,
        {name: t.contiguous() for name, t in tensors.items()},
        "Weights of two GPT-2 models that read bytes and differ in the norm alone, rounded to float16.",
        folder,
        model=f"GPT-2, {size['layers']} layers, {size['width']} wide, {size['heads']} heads, from the same weights",
        layers=size["layers"],
        heads=size["heads"],
        eps=", ".join(sorted({f"{site.eps:g}" for site in find_norms(model)})),
        corpus=f"{corpus['name']} of Python {corpus.get('python', 'unknown')}, {run['had']['tokens']} bytes",
        training=f"{size['steps']} updates of {size['batch']} windows of {size['length']} bytes, rate {size['lr']}",
        held_out=f"{asked['held_out']} bytes",
        loss=", ".join(f"{kind} {loss:.4f} nats a byte" for kind, loss in losses.items()),
        seed=asked["seed"],
    )
    click.echo(path)
