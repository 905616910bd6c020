"""The command ``normgeom``."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click
import torch


@contextmanager
def _plainly() -> Iterator[None]:
    """What a user can mend is said in a line: a warning, or an error that begins with the name of an argument."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}", err=True)
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise click.ClickException(f"{error} --batch-size, --length, --dtype and --device-map can help.") from error
        except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
            if not re.match(r"[a-z_]+: ", str(error)):
                raise
            raise click.ClickException(" ".join(str(error).split())) from error


def _split(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [name for value in values for name in value.split(",")]


@click.group(context_settings=dict(help_option_names=["-h", "--help"]))
@click.version_option(package_name="normgeom")
def main() -> None:
    """Measure what the norms of a model do to its hidden vectors."""


@main.command()
@click.option("--model", required=True, help="Name on the hub, or folder that save_pretrained wrote.")
@click.option("--out", required=True, type=click.Path(file_okay=False), metavar="DIR", help="Folder of the result.")
@click.option(
    "--tokens", default=1_000_000, show_default=True, type=click.IntRange(min=1), help="Read at most so many."
)
@click.option("--corpus", default="wikipedia", show_default=True, help="wikipedia, openwebtext, stdlib or a text file.")
@click.option("--length", type=click.IntRange(min=1), help="Tokens of a window.  [default: 512 or the model's most]")
@click.option("--batch-size", default=8, show_default=True, type=click.IntRange(min=1), help="Windows of a batch.")
@click.option(
    "--directions",
    multiple=True,
    default=["uniform,random_a,random_b"],
    show_default=True,
    callback=_split,
    help="uniform, random_…, signs_… or matched_…; several by commas or by repeating the option.",
)
@click.option(
    "--nulls",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Besides, so many directions of each null: random, signs and matched.",
)
@click.option("--seed", default=0, show_default=True, help="Of the directions that are drawn.")
@click.option("--device", help="cpu, cuda, mps, …  [default: an accelerator, if there is one]")
@click.option(
    "--dtype", default="auto", show_default=True, help="auto (as saved), float64, float32, bfloat16, float16."
)
@click.option("--device-map", help="auto, balanced, balanced_low_0 or sequential: spread the model over all devices.")
@click.option("--revision", help="Branch, tag or commit of a model on the hub.")
def survey(out: str, directions: list[str], nulls: int, **options: object) -> None:
    """Angles between hidden vectors and fixed directions, before and after every norm of a model.

    DIR takes table.parquet and provenance.json, and while it runs the state, saved after every batch: the same command
    goes on where it was stopped.  Several processes share the work under torchrun or accelerate launch, as in
    torchrun --nproc-per-node 4 -m normgeom.cli survey …
    """
    with _plainly():
        from normgeom.measure.directions import nulls as names
        from normgeom.measure.runs import TABLE, survey_model

        provenance = survey_model(out=out, directions=[*directions, *names(nulls)], **options)
    if provenance is not None:
        click.echo(f"{provenance['had']['tokens']} tokens: {out}/{TABLE}")


@main.command()
@click.argument("model")
@click.argument("out", metavar="OUT.html")
@click.option(
    "-p", "parameters", multiple=True, nargs=2, metavar="NAME VALUE", help="A parameter of chapter 7; may be repeated."
)
def report(model: str, out: str, parameters: tuple[tuple[str, str], ...]) -> None:
    """The norm report of MODEL: chapter 7 of the book, run on it, as one page that needs no network.

    MODEL is a name on the hub or a folder that save_pretrained wrote.
    """
    with _plainly():
        from normgeom.report import write_report

        click.echo(write_report(model, out, dict(parameters)))


if __name__ == "__main__":
    main()
