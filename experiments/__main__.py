"""``python -m experiments``: measure the records that are missing or stale, or list them."""

from importlib import import_module
from pathlib import Path

import click

from experiments.registry import FRESH, MISSING, STALE, Experiment, Failed, Registry, registry


@click.command()
@click.argument("names", nargs=-1)
@click.option("--check", "checked", is_flag=True, help="List stale, missing and unknown records; exit with 1 if any.")
@click.option("--restamp", is_flag=True, help="Declare that code changes cannot have changed these records.")
@click.pass_obj
def main(known: Registry | None, names: tuple[str, ...], checked: bool, restamp: bool) -> None:
    """Measure the experiments with these NAMES, or all that have missing or stale records, the cheapest first.

    A name is that of an experiment or of a record, and * matches anything.  An interrupted run continues where it
    stopped.  If a record is missing and needs published models or a GPU, it is measured only when it is named.
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
    """Return the registry with the experiments of all modules in this folder."""
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        import_module(f"experiments.{path.stem}")
    return registry


def check(known: Registry, chosen: list[Experiment], names: tuple[str, ...]) -> None:
    """Fail with one line for each experiment whose records have a problem and for each unknown record."""
    amiss, stale = [], []
    for experiment in chosen:
        word, why = known.state(experiment)
        if word != FRESH and not (word == MISSING and experiment.needs):
            amiss.append(f"{experiment.name}: {word}{why and f' ({why})'}: make experiments ONLY={experiment.name}")
            stale += [experiment.name] * (word == STALE)
    if stale:
        amiss.append(f"if no number can have changed, run: python -m experiments --restamp {' '.join(stale)}")
    amiss += [f"{name}: no experiment writes it; delete it" for name in (() if names else known.orphans())]
    if amiss:
        raise click.ClickException("\n".join(["some records do not match this code", *amiss]))


def measure(known: Registry, chosen: list[Experiment], names: tuple[str, ...]) -> None:
    """Measure the experiments that are not fresh and can be measured on this computer."""
    failed = []
    for experiment in chosen:
        word, why = known.state(experiment)
        if word == FRESH or (word == MISSING and experiment.needs and not names):
            if names:
                click.echo(f"{experiment.name}: {word}; to measure it again, delete its record")
            continue
        if lacking := experiment.needs and experiment.needs():
            click.echo(f"{experiment.name}: {word}, and skipped, because it needs {lacking}")
            continue
        click.echo(f"{experiment.name}: {word}{why and f' ({why})'}, measured now in about {experiment.minutes:g} min")
        try:
            known.run(experiment)
        except (Failed, BlockingIOError) as error:
            failed.append(str(error))
            click.echo(f"{experiment.name}: failed; to continue with the points that remain, repeat the command")
    if failed:
        raise click.ClickException("\n".join(failed))


if __name__ == "__main__":
    main()
