"""The command ``normgeom``: options and their ranges; an error that the user can fix is reported in one line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

try:
    import click
except ModuleNotFoundError:
    raise SystemExit("click is missing: install normgeom[models]") from None


@contextmanager
def _one_line(stopped: str = "the same command resumes from here") -> Iterator[None]:
    """Report a warning, a refusal or Ctrl-C in one line; a RuntimeError is a bug and keeps its traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}", err=True)
        try:
            yield
        except KeyboardInterrupt:
            _end(130, f"Stopped: {stopped}")
        except ModuleNotFoundError as error:
            extra = "hub" if error.name == "datasets" else "models"
            _end(2, f"Error: {error.name} is missing: install normgeom[{extra}]")
        except (ValueError, TypeError, OSError, ImportError) as error:
            _end(2, f"Error: {error}")


def _end(status: int, said: str) -> NoReturn:
    click.echo(" ".join(said.split()), err=True)
    sys.exit(status)


class _WholeNumber(click.IntRange):
    """A whole number written as 1000000, 1_000_000 or 1e6."""

    name = "whole number"

    def convert(self, value, param, ctx):
        with suppress(ValueError):
            value = int(number) if (number := float(value)).is_integer() else value
        return super().convert(value, param, ctx)


_COUNT = _WholeNumber(1)
_DEVICES = click.Choice(["cpu", "cuda", "mps", "xpu"])
_DTYPES = click.Choice(["auto", "float64", "float32", "bfloat16", "float16"])


@click.group(context_settings=dict(help_option_names=["-h", "--help"], show_default=True))
@click.version_option(package_name="normgeom")
def main() -> None:
    """Measure what the norms of a model do to its hidden vectors; convert and examine models."""


@main.command()
@click.option("--model", required=True, help="Name on the hub, or a folder written by save_pretrained.")
@click.option("--out", required=True, type=click.Path(file_okay=False), metavar="DIR", help="Folder for results.")
@click.option("--tokens", default=1_000_000, type=_COUNT, help="Largest number of tokens to read.")
@click.option("--corpus", default="wikipedia", help="wikipedia, stdlib or a text file.")
@click.option("--length", default=512, type=_COUNT, help="Tokens per window; not more than the model's positions.")
@click.option("--batch-size", default=8, type=_COUNT, help="Windows per batch.")
@click.option("--nulls", default=0, type=click.IntRange(0), help="More directions per null: random, signs.")
@click.option("--seed", default=0, type=click.IntRange(0, 2**32 - 1), help="Seed of all random draws.")
@click.option("--device", type=_DEVICES, help="[default: an accelerator if there is one]")
@click.option("--dtype", default="auto", type=_DTYPES, help="auto: the dtype of the saved model.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress bars.")
def survey(out: str, **options: object) -> None:
    """Measure angles between hidden vectors and fixed directions, before and after every norm of a model.

    The directions are 1, thirty sign vectors, and those of --nulls.

    The results are table.parquet, provenance.json and state.safetensors in DIR.  The state is saved during the run, so
    that the same command resumes an interrupted one.  DIR can hold the results of one survey only.

    A survey takes about as long as the model needs to read the tokens.
    """
    with _one_line():
        from normgeom.commands.survey import TABLE, survey_model

        note = survey_model(out=out, **options)
        click.echo(f"{note['tokens']} tokens: {out}/{TABLE}")


@main.command()
@click.argument("model")
@click.argument("out", metavar="OUT", type=click.Path(file_okay=False))
def convert(model: str, out: str) -> None:
    """Convert MODEL from LayerNorm to RMSNorm without changing its function, and write it to the folder OUT.

    MODEL is a name on the hub or a folder written by save_pretrained.  Load OUT with normgeom.load_converted.
    A small model takes seconds; memory must hold the model and a copy of it in float64.
    """
    with _one_line(stopped="the same command starts again from the beginning"):
        from normgeom.commands.convert import convert_model

        note = convert_model(model, out)
        click.echo(f"Saved in {out}: on {note['tokens']} tokens in float64, the logits agree to 1e-10 of the largest")


@main.command()
@click.argument("model")
@click.pass_context
def doctor(context: click.Context, model: str) -> None:
    """Examine the norms of MODEL: list the properties of each norm and what looks wrong with it.

    MODEL is a name on the hub or a folder written by save_pretrained.  The exit code is 0 if MODEL is sound, 1 if there
    is a problem, and 2 if it cannot be examined, for example because weights are NaN.  The command takes as long as the
    model needs to read 256 tokens a few times.
    """
    with _one_line(stopped="the same command starts again from the beginning"):
        from normgeom.commands.doctor import examine, lines

        report = examine(model)
        for line in lines(report):
            click.echo(line)
        click.echo(f"{len(report.norms)} norms, {len(report)} problems")
    context.exit(bool(report))
