"""The command ``normgeom``."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def _plainly() -> Iterator[None]:
    """What a user can mend is said in a line: a warning, or an error that begins with the name of an argument."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}", err=True)
        try:
            yield
        except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
            if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported to answer --help
                raise click.ClickException(f"{error} Less --batch-size, --at-once or --length can help.") from error
            if isinstance(error, ImportError) and "Could not import module" in str(error):  # transformers', of a part
                raise click.ClickException(
                    f"transformers: a package that it imports is broken ({_root(error)}); install it anew, or remove it"
                ) from error
            if not re.match(r"[a-z_]+: ", str(error)):
                raise
            raise click.ClickException(" ".join(str(error).split())) from error


def _root(error: BaseException) -> str:
    """What an error comes from."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return f"{type(error).__name__}: {error}"


def _say(text: str) -> None:
    """To standard output; where that fails, the results are there all the same."""
    try:
        click.echo(text)
    except OSError as error:
        raise click.ClickException(f"the work is done, but standard output failed: {error.strerror}") from error


def _split(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [name for value in values for name in value.split(",")]


# What several commands take.
_DEVICE = click.option("--device", help="cpu, cuda, mps, …  [default: an accelerator, if there is one]")
_OUT = click.option(
    "--out", required=True, type=click.Path(file_okay=False), metavar="DIR", help="Folder of the result."
)
_LENGTH = click.option(
    "--length", type=click.IntRange(min=1), help="Tokens of a window.  [default: the model's positions, up to 512]"
)
_TOKENIZER = click.option("--tokenizer", help="Name on the hub, folder, or bytes.  [default: the model's]")
_REVISION = click.option("--revision", help="Branch, tag or commit of a model on the hub.")


@click.group(context_settings=dict(help_option_names=["-h", "--help"]))
@click.version_option(package_name="normgeom")
def main() -> None:
    """Measure what the norms of a model do to its hidden vectors, at inference and in training; do without the mean."""


@main.command()
@click.option("--model", required=True, help="Name on the hub, or folder that save_pretrained wrote.")
@_OUT
@click.option(
    "--tokens", default=1_000_000, show_default=True, type=click.IntRange(min=1), help="Read at most so many."
)
@click.option("--corpus", default="wikipedia", show_default=True, help="wikipedia, openwebtext, stdlib or a text file.")
@_LENGTH
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
@_DEVICE
@click.option(
    "--dtype", default="auto", show_default=True, help="auto (as saved), float64, float32, bfloat16, float16."
)
@click.option("--device-map", help="auto, balanced, balanced_low_0 or sequential: spread the model over all devices.")
@_TOKENIZER
@click.option(
    "--allow-missing",
    is_flag=True,
    help="Warn, and draw, where weights are missing, unexpected or of another shape; warn where they are NaN or Inf.",
)
@_REVISION
def survey(out: str, directions: list[str], nulls: int, **options: object) -> None:
    """Angles between hidden vectors and fixed directions, before and after every norm of a model.

    DIR takes table.parquet, provenance.json and the state of each process, saved on the way: the same command goes on
    where it was stopped.  DIR belongs to that command alone.  Several processes share the work under torchrun
    or accelerate launch, as in torchrun --nproc-per-node 4 -m normgeom.cli survey …

    It takes about as long as the model needs to read the tokens: GPT-2 reads some 400 a second on one processor core,
    a million in three quarters of an hour.

    In the table the quantile q05_deg is the angle below which 5 % of the vectors lie, those of each 0.25 degrees taken
    as spread evenly over them; of few vectors it is not what interpolating between two of them gives.  Likewise q50_deg
    and q95_deg.
    """
    with _plainly():
        from normgeom.commands.survey import TABLE, survey_model
        from normgeom.survey.directions import nulls as names

        provenance = survey_model(out=out, directions=[*directions, *names(nulls)], **options)
    if provenance is not None:
        _say(f"{provenance['had']['tokens']} tokens: {out}/{TABLE}")


@main.command()
@click.option("--size", required=True, help="0.2M, 1M, 5M, 10M, 70M, 160M, 410M or 1B: the last four are the paper's.")
@_OUT
@click.option(
    "--norm",
    default="both",
    show_default=True,
    help="both, all, layer, rms, layer-plain, rms-plain, centre, centre-plain or none.",
)
@click.option(
    "--corpus", default="openwebtext", show_default=True, help="openwebtext, wikipedia, stdlib or a text file."
)
@click.option("--tokenizer", default="gpt2", show_default=True, help="Name on the hub, folder, or bytes.")
@click.option("--seed", default=0, show_default=True, help="Of weights, order of windows and directions.")
@click.option("--steps", type=click.IntRange(min=1), help="Updates.  [default: the size's]")
@click.option("--batch-size", type=click.IntRange(min=1), help="Windows of an update.  [default: the size's]")
@click.option("--length", type=click.IntRange(min=2), help="Tokens of a window.  [default: the size's]")
@click.option("--rate", type=float, help="Peak of the learning rate.  [default: the size's]")
@click.option("--spacing", type=click.IntRange(min=1), help="Updates between checkpoints.  [default: the size's]")
@click.option("--decay", default=0.1, show_default=True, help="Weight decay of matrices and embeddings.")
@click.option("--precision", default="no", show_default=True, help="no (float32) or bf16: mixed precision.")
@click.option("--at-once", type=click.IntRange(min=1), help="Windows that pass through a device together.")
@click.option(
    "--held-out",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(min=2),
    help="Tokens to measure on, the last that are read of the corpus.",
)
@click.option("--survey-corpus", help="Measure on another corpus, such as wikipedia.")
@_DEVICE
def train(out: str, **options: object) -> None:
    """Train GPT-2 models that differ in the norm alone, and measure their norms on the way.

    DIR takes a folder for each norm, with Parquet tables (curve, loss, survey, gains, surface) and the model, and
    provenance.json.  The same command goes on where it was stopped, and another --norm joins those that are there; DIR
    takes no other training.

    Both twins of size 0.2M take about a minute on one processor core, of 1M a quarter of an hour; the others are for
    an accelerator.
    """
    with _plainly():
        from normgeom.commands.train import train_twins

        provenance = train_twins(out=out, **options)
    if provenance is not None:
        for norm, loss in provenance["had"]["loss"].items():
            _say(f"{norm}: {loss:.4f} nats a token, {out}/{norm}")


@main.command()
@click.argument("model")
@click.argument("out", metavar="OUT", type=click.Path(file_okay=False))
@click.option("--bound", default=1e-10, show_default=True, help="Write nothing if a logit changes by more, in float64.")
@click.option("--tokens", default=1024, show_default=True, help="Compare on at most so many.")
@click.option("--corpus", default="stdlib", show_default=True, help="stdlib, wikipedia, openwebtext or a text file.")
@_LENGTH
@_TOKENIZER
@click.option("--dtype", default="auto", show_default=True, help="Of what is written: auto (as saved), float64, ….")
@_REVISION
def convert(**options: object) -> None:
    """Write MODEL, which has LayerNorm, as an RMSNorm model that computes the same, to the new folder OUT.

    MODEL is a name on the hub or a folder that save_pretrained wrote.  normgeom.load_converted loads OUT.
    A small model takes seconds; memory must hold the model three times, twice of them in float64.
    """
    with _plainly():
        from normgeom.commands.convert import convert_model

        found = convert_model(**options)
    _say(
        f"Largest difference of a logit on {found.tokens} tokens (the largest logit is {found.largest:.3g}):\n"
        f"  float64, before and after   {found.exact:.1e}\n"
        f"  {found.dtype} from float64: {found.unconverted:.1e} before, {found.converted:.1e} after"
    )


@main.command()
@click.argument("model")
@click.argument("out", metavar="OUT.html")
@click.option(
    "-p", "parameters", multiple=True, nargs=2, metavar="NAME VALUE", help="A parameter of chapter 7; may be repeated."
)
def report(model: str, out: str, parameters: tuple[tuple[str, str], ...]) -> None:
    """The norm report of MODEL: chapter 7 of the book, run on it, as one page that needs no network.

    MODEL is a name on the hub or a folder that save_pretrained wrote.  Beside the model's own reading of the tokens
    the chapter takes one to two minutes, most of them for the small models that it trains.
    """
    with _plainly():
        from normgeom.commands.report import write_report

        written = write_report(model, out, dict(parameters))
    _say(str(written))


if __name__ == "__main__":
    main()
