"""``python -m records COMMAND``: write a recorded measurement, with its provenance, to figures/data."""

import click

from records import (
    angles,
    claims,
    designs,
    dropping,
    forward,
    gains,
    gpu,
    massive,
    models,
    norms,
    overhead,
    pairs,
    placement,
    quote,
    removal,
    scale,
    speed,
    training,
    twins,
    watched,
    zeroed,
)

COMMANDS = (
    angles,
    claims,
    designs,
    dropping,
    forward,
    gains,
    gpu,
    massive,
    models,
    norms,
    overhead,
    pairs,
    placement,
    pairs,
    quote,
    removal,
    scale,
    speed,
    training,
    twins,
    watched,
    zeroed,
)
main = click.Group("records", {module.__name__.rpartition(".")[2]: module.main for module in COMMANDS})

if __name__ == "__main__":
    main()
