"""``python -m press``."""

from press.cli import main

main(prog_name="press")
