"""What the tests do to a toy book."""

import os
import subprocess
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]


def make(folder: Path, *targets: str) -> subprocess.CompletedProcess:
    """Run make as at a prompt, whatever make runs the tests."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", "--assume-old=.venv/.installed", *targets],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def edit(folder: Path, name: str, change) -> None:
    """Apply ``change`` to an executed notebook of the book in ``folder``."""
    path = folder / f"_build/run/{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, path)
