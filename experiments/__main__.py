"""``python -m experiments``: measure what is missing or stale, or say what is."""

from importlib import import_module
from pathlib import Path

import click

from experiments.registry import FRESH, MISSING, STALE, Experiment, Failed, Registry, registry


@click.command()
@click.argument("names", nargs=-1)
@click.option("--check", "checked", is_flag=True, help="Name what is stale, missing or foreign; exit with 1.")
@click.option("--restamp", is_flag=True, help="Declare that the code's changes cannot have changed these records.")
@click.pass_obj
def main(known: Registry | None, names: tuple[str, ...], checked: bool, restamp: bool) -> None:
    """Measure the experiments of these NAMES, or all whose records are missing or stale, the cheapest first.

    A name is that of an experiment or of a record, * for anything.  An interrupted run goes on where it stopped.
    A missing record that needs published models or a GPU is measured where it is named.
    """
    try:
        known = known or load()
        chosen = known.select(names)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if checked:
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


def check(known: Registry, chosen: list[Experiment], names: tuple[str, ...]) -> None:
    """A line for each record that is not as it should be."""
    amiss, stale = [], []
    for experiment in chosen:
        word, why = known.state(experiment)
        if word != FRESH and not (word == MISSING and experiment.needs):
            amiss.append(f"{experiment.name}: {word}{why and f' ({why})'}: make experiments ONLY={experiment.name}")
            stale += [experiment.name] * (word == STALE)
    if stale:
        amiss.append(f"if no number can have changed: python -m experiments --restamp {' '.join(stale)}")
    amiss += [f"{name}: no experiment writes it; delete it" for name in (() if names else known.orphans())]
    if amiss:
        raise click.ClickException("\n".join(["records are not those of this code", *amiss]))


def measure(known: Registry, chosen: list[Experiment], names: tuple[str, ...]) -> None:
    """Measure what is not fresh and can be measured here."""
    failed = []
    for experiment in chosen:
        word, why = known.state(experiment)
        if word == FRESH or (word == MISSING and experiment.needs and not names):
            if names:
                click.echo(f"{experiment.name}: {word}; to measure it again, delete its record")
            continue
        if lacking := experiment.needs and experiment.needs():
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
