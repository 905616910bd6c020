"""The command ``normgeom``: options, their ranges, and one line for what a user can mend."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

try:
    import click
except ModuleNotFoundError:
    raise SystemExit("click is missing: install normgeom[models]") from None


class Refusal(click.ClickException):
    """What a user can mend, in one line."""

    exit_code = 2

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class Stopped(click.ClickException):
    """By the user, with Ctrl-C."""

    exit_code = 130

    def show(self, file: object = None) -> None:
        click.echo(f"Stopped: {self.message}", err=True)


@contextmanager
def _one_line(extra: str = "models", stopped: str = "the same command goes on from here") -> Iterator[None]:
    """Say a warning, a refusal or Ctrl-C in one line; a RuntimeError is a bug and keeps its traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _warn(f"Warning: {message}")
        try:
            yield
        except KeyboardInterrupt:
            raise Stopped(stopped) from None
        except ModuleNotFoundError as error:
            raise Refusal(f"{error.name} is missing: install normgeom[{extra}]") from error
        except (ValueError, TypeError, OSError, ImportError) as error:
            raise Refusal(str(error)) from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # Rust's, which has no class to catch
                raise
            raise Refusal(f"tokenizer: it broke down on this text ({error!s:.300})") from error
        finally:
            for bar in [*getattr(_tqdm(), "_instances", ())]:
                bar.close()  # what is said next begins on a line of its own


def _tqdm() -> type | None:
    """The class of progress bars, once something has loaded it."""
    return getattr(sys.modules.get("tqdm"), "tqdm", None)


def _warn(said: str) -> None:
    """Say something above the progress bars."""
    _tqdm().write(said, sys.stderr) if _tqdm() else click.echo(said, err=True)


class Count(click.IntRange):
    """A whole number in a range, as people write it: 1000000, 1_000_000 or 1e6."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        with suppress(ValueError, OverflowError):  # a word, NaN or infinite
            if float(value).is_integer():
                value = int(float(value))
        return super().convert(value, param, ctx)


# What several commands take.
_DEVICES, _DTYPES = ["cpu", "cuda", "mps", "xpu"], ["auto", "float64", "float32", "bfloat16", "float16"]
_SIZES = ["0.2M", "1M", "5M", "10M", "70M", "160M", "410M", "1B"]
_DEVICE = click.option("--device", type=click.Choice(_DEVICES), help="[default: an accelerator, if there is one]")
_OUT = click.option("--out", required=True, type=click.Path(file_okay=False), metavar="DIR", help="Folder of results.")
_QUIET = click.option("-q", "--quiet", "progress", flag_value=False, default=True, help="Without progress bars.")
_SEED = click.option("--seed", default=0, show_default=True, type=Count(0, 2**32 - 1), help="Of all that is drawn.")


@click.group(context_settings=dict(help_option_names=["-h", "--help"], show_default=True))
@click.version_option(package_name="normgeom")
def main() -> None:
    """Measure what the norms of a model do to its hidden vectors, at inference and in training; do without the mean."""


@main.command()
@click.option("--model", required=True, help="Name on the hub, or folder that save_pretrained wrote.")
@_OUT
@click.option("--tokens", default=1_000_000, type=Count(1), help="Read at most so many.")
@click.option("--corpus", default="wikipedia", help="wikipedia, openwebtext, stdlib or a text file.")
@click.option("--length", type=Count(1), help="Tokens of a window.  [default: the model's positions, up to 512]")
@click.option("--batch-size", default=8, type=Count(1), help="Windows of a batch.")
@click.option("--nulls", default=0, type=Count(0), help="Directions of each null: random, signs and matched.")
@_SEED
@_DEVICE
@click.option("--dtype", default="auto", type=click.Choice(_DTYPES), help="auto: as saved.")
@_QUIET
def survey(out: str, **options: object) -> None:
    """Angles between hidden vectors and fixed directions, before and after every norm of a model.

    DIR takes table.parquet, provenance.json and the state of each process, saved on the way: the same command goes on
    where it was stopped.  DIR belongs to that command alone.  Several processes share the work under torchrun
    or accelerate launch, as in torchrun --nproc-per-node 4 -m normgeom survey …

    It takes about as long as the model needs to read the tokens.  In the table q05_deg, q50_deg and q95_deg are
    quantiles of the angle, those of each 0.25 degrees taken as spread evenly over them.
    """
    with _one_line():
        from normgeom.commands.survey import TABLE, survey_model

        provenance = survey_model(out=out, **options)
        if provenance is not None:
            click.echo(f"{provenance['had']['tokens']} tokens: {out}/{TABLE}")


@main.command()
@click.option("--size", required=True, type=click.Choice(_SIZES), help="The last four are the paper's.")
@_OUT
@click.option("--corpus", default="openwebtext", help="openwebtext, wikipedia, stdlib or a text file.")
@click.option("--tokenizer", default="gpt2", help="Name on the hub, folder, or bytes.")
@_SEED
@click.option("--steps", type=Count(1), help="[default: the size's]")
@click.option("--batch-size", type=Count(1), help="Windows of a step.  [default: the size's]")
@click.option("--length", type=Count(2), help="Tokens of a window.  [default: the size's]")
@click.option("--eval-interval", type=Count(1), help="Steps between checkpoints.  [default: the size's]")
@click.option("--precision", default="no", type=click.Choice(["no", "bf16"]), help="no is float32, bf16 mixed.")
@click.option("--micro-batch", type=Count(1), help="Windows that pass through the device together.")
@click.option("--held-out", default=1_000_000, type=Count(2), help="Tokens to measure on, the last that are read.")
@_DEVICE
@_QUIET
def train(out: str, **options: object) -> None:
    """Train two GPT-2 models that differ in the norm alone, and measure their norms on the way.

    DIR takes a folder for each norm, with Parquet tables (curve, loss, survey, gains, surface) and the model, and
    provenance.json.  The same command goes on where it was stopped; DIR takes no other training.

    Both twins of size 0.2M take about a minute on one processor core, of 1M a quarter of an hour; the others are for
    an accelerator.
    """
    with _one_line():
        from normgeom.commands.train import train_twins

        for norm, loss in train_twins(out=out, **options)["had"]["loss"].items():
            click.echo(f"{norm}: {loss:.4f} nats per token, {out}/{norm}")


@main.command()
@click.argument("model")
@click.argument("out", metavar="OUT", type=click.Path(file_okay=False))
def convert(model: str, out: str) -> None:
    """Write MODEL, which has LayerNorm, as an RMSNorm model that computes the same, to the folder OUT.

    MODEL is a name on the hub or a folder that save_pretrained wrote.  normgeom.load_converted loads OUT.
    A small model takes seconds; memory must hold the model three times, twice of them in float64.
    """
    with _one_line(stopped="the same command begins anew"):
        from normgeom.commands.convert import convert_model

        had = convert_model(model, out)["had"]
        click.echo(
            "Largest difference of a logit on {tokens} tokens (the largest logit is {largest:.3g}):\n"
            "  float64, before and after   {exact:.1e}\n"
            "  {dtype} from float64: {unconverted:.1e} before, {converted:.1e} after".format(**had)
        )


@main.command()
@click.argument("model")
@click.pass_context
def doctor(context: click.Context, model: str) -> None:
    """Examine the norms of MODEL: what each one is, and what looks wrong with it, a line each.

    MODEL is a name on the hub or a folder that save_pretrained wrote.  The exit code is 0 if it is sound, with or
    without notes, 1 if there is a problem, and 2 if it cannot be examined, as with weights that are NaN.  It takes as
    long as the model needs to read 256 tokens a few times.
    """
    with _one_line(stopped="the same command begins anew"):
        from normgeom.commands.doctor import examine, lines

        report = examine(model)
        for line in lines(report):
            click.echo(line)
        problems = sum(not finding.note for finding in report)
        click.echo(f"{len(report.norms)} norms, {problems} problems, {len(report) - problems} notes")
    context.exit(bool(problems))


@main.command()
@click.argument("model")
@click.argument("out", metavar="OUT.html")
@click.option("-p", "parameters", multiple=True, nargs=2, metavar="NAME VALUE", help="A parameter of chapter 7.")
@_QUIET
def report(model: str, out: str, parameters: tuple[tuple[str, str], ...], progress: bool) -> None:
    """The norm report of MODEL: chapter 7 of the book, run on it, as one page that needs no network.

    MODEL is a name on the hub or a folder that save_pretrained wrote.  Beside the model's own reading of the tokens
    the chapter takes one to two minutes, most of them for the small models that it trains.
    """
    with _one_line("report", "the same command begins anew"):
        from normgeom.commands.report import write_report

        click.echo(str(write_report(model, out, dict(parameters), progress)))
