"""Whether records that someone contributes are what claims can be judged from."""

from pathlib import Path

import click
from normgeom.claims import check_record


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(paths: tuple[Path, ...]) -> None:
    """Refuse what is malformed or foreign among the records PATHS, tables angles-…, nulls-… and pair-…, CSV files."""
    wrong = []
    for path in paths:
        try:
            check_record(path)
            click.echo(f"{path.name}: good")
        except (ValueError, OSError) as error:
            wrong.append(str(error))
    if wrong:
        raise click.ClickException("\n".join(wrong))
