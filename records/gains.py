"""The gains of every norm of a model."""

import click
import normgeom as ng
import pandas as pd
from normgeom_lab.common.recording import record
from transformers import AutoModel


@click.command()
@click.argument("model")
@click.argument("name")
@click.option("--source", required=True, help="Where the model can be had: a sentence for the provenance.")
def main(model: str, name: str, source: str) -> None:
    """Write gains-NAME: the gains of MODEL, a transformers model by name or folder whose norms have one width."""
    sites = ng.find_norms(AutoModel.from_pretrained(model).eval())
    table = pd.DataFrame({site.name: site.weight for site in sites})
    path = record(
        f"gains-{name}",
        table,
        "The gain γ of every norm: a column a norm, in the order in which the model runs them; a row a coordinate.",
        model=name,
        source=source,
        kinds=", ".join(sorted({site.kind for site in sites})),
        eps=", ".join(sorted({f"{site.eps:.0e}" for site in sites})),
    )
    click.echo(path)
