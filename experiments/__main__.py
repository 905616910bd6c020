"""``python -m experiments``: measure what is missing or stale, or say what is."""

from importlib import import_module
from pathlib import Path
from textwrap import shorten

import click

from experiments.registry import FRESH, MISSING, STALE, Experiment, Failed, Registry, registry

FOREIGN = "no experiment writes it; delete it"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "listed", is_flag=True, help="Say what each experiment measures, and the state of its records.")
@click.option("--check", "checked", is_flag=True, help="Name what is stale, missing or foreign; exit with 1.")
@click.option("--restamp", is_flag=True, help="Declare that the code's changes cannot have changed these records.")
@click.pass_obj
def main(known: Registry | None, names: tuple[str, ...], listed: bool, checked: bool, restamp: bool) -> None:
    """Measure the experiments of these NAMES, or all whose records are missing or stale, the cheapest first.

    A name is that of an experiment or of a record, * for anything.  An interrupted run goes on where it stopped.  What
    the book does without, such as larger models, is measured where it is named.
    """
    try:
        known = known or load()
        chosen = known.select(names)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if listed:
        show(known, chosen, names)
    elif checked:
        check(known, chosen, names)
    elif restamp:
        for experiment in chosen:
            click.echo("\n".join(known.restamp(experiment)))
    else:
        measure(known, chosen, names)


def load() -> Registry:
    """The registry with the experiments of every module in this folder."""
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        import_module(f"experiments.{path.stem}")
    return registry


def show(known: Registry, chosen: list[Experiment], names: tuple[str, ...]) -> None:
    """A line or two for each experiment, and for each record that none writes."""
    for experiment in chosen:
        word, why = known.state(experiment)
        lacking = "" if word == FRESH else experiment.needs()
        state = ", ".join(filter(None, [f"{word}: {why}" if why else word, lacking and f"needs {lacking}"]))
        click.echo(f"{experiment.name} ({state}; about {experiment.minutes:g} min)")
        for name, what in experiment.what.items():
            click.echo(f"    {'' if name == experiment.name else name + ': '}{shorten(what, 100, placeholder=' …')}")
    for name in () if names else known.orphans():
        click.echo(f"{name} ({FOREIGN})")


def check(known: Registry, chosen: list[Experiment], names: tuple[str, ...]) -> None:
    """A line for each record that is not as it should be."""
    amiss, stale = [], []
    for experiment in chosen:
        word, why = known.state(experiment)
        if word != FRESH and not (word == MISSING and experiment.optional):
            amiss.append(f"{experiment.name}: {word}{why and f' ({why})'}: make experiments ONLY={experiment.name}")
            stale += [experiment.name] * (word == STALE)
    if stale:
        amiss.append(f"if no number can have changed: python -m experiments --restamp {' '.join(stale)}")
    amiss += [f"{name}: {FOREIGN}" for name in (() if names else known.orphans())]
    if amiss:
        raise click.ClickException("\n".join(["records are not those of this code", *amiss]))


def measure(known: Registry, chosen: list[Experiment], names: tuple[str, ...]) -> None:
    """Measure what is not fresh and can be measured here."""
    failed = []
    for experiment in chosen:
        word, why = known.state(experiment)
        if word == FRESH or (word == MISSING and experiment.optional and not names):
            if names:
                click.echo(f"{experiment.name}: {word}; to measure it again, delete its record")
            continue
        if lacking := experiment.needs():
            click.echo(f"{experiment.name}: {word}, and left out: it needs {lacking}")
            continue
        click.echo(f"{experiment.name}: {word}{why and f' ({why})'}, measured now in about {experiment.minutes:g} min")
        try:
            known.run(experiment)
        except (Failed, BlockingIOError) as error:
            failed.append(str(error))
            click.echo(f"{experiment.name}: failed; the same command goes on with what is finished")
    if failed:
        raise click.ClickException("\n".join(failed))


if __name__ == "__main__":
    main()
