"""``python -m normgeom``."""

from normgeom.cli import main

main(prog_name="normgeom")
