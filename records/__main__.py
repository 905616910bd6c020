"""``python -m records COMMAND``: write a recorded measurement, with its provenance, to figures/data."""

import click

from records import (
    angles,
    claims,
    designs,
    dropping,
    gains,
    massive,
    norms,
    overhead,
    placement,
    quote,
    removal,
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
    gains,
    massive,
    norms,
    overhead,
    placement,
    quote,
    removal,
    speed,
    training,
    twins,
    watched,
    zeroed,
)
main = click.Group("records", {module.__name__.rpartition(".")[2]: module.main for module in COMMANDS})

if __name__ == "__main__":
    main()
