"""A notebook for Colab in an environment that lacks the library, from another folder, without a network."""

import os
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest
from press.colab import colab

CHAPTER = "appendix/errata.ipynb"
ORIGIN = "import importlib.util as u; print(u.find_spec('normgeom') and u.find_spec('normgeom').origin)"


@pytest.fixture(scope="session")
def fresh(tmp_path_factory) -> Path:
    """An environment with a pip of its own and everything that is installed here but the library."""
    folder = tmp_path_factory.mktemp("fresh")
    here, others = Path(sysconfig.get_path("purelib")), folder / "others"
    others.mkdir()
    for entry in here.iterdir():
        if "normgeom" not in entry.name and not entry.name.startswith("pip"):
            (others / entry.name).symlink_to(entry)
    venv.create(folder / "venv", with_pip=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")}))
    (site / "others.pth").write_text(f"{others}\n")
    return folder / "venv"


@pytest.fixture(scope="module")
def run(fresh, tmp_path_factory):
    """Run code in that environment, in a folder that has a space in its name; gives what it printed."""
    elsewhere = tmp_path_factory.mktemp("some where")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    environment = kept | {"PIP_NO_INDEX": "1", "MPLBACKEND": "agg", "PYTHONPATH": ""}

    def run(code: str) -> str:
        done = subprocess.run(
            [fresh / "bin/python", "-"],
            input=code,
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_one_file_is_enough(book, fresh, run):
    notebook = nbformat.reads(colab(book)[CHAPTER].decode(), as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert run(ORIGIN) == "None\n", "the environment has the library before the setup: the test would show nothing"
    first = run("\n".join(code))
    assert first.startswith(f"Installed: {book.project['name']} {book.project['version']}. torch ")
    assert "error ≤" in first
    assert Path(run(ORIGIN).strip()).is_relative_to(fresh)
    assert run(code[0]).startswith("Installed: nothing, all is here. torch ")
    other = re.sub(r"digest = '\w+'", "digest = 'of another wheel'", code[0])
    assert run(other).startswith("Installed: normgeom"), "the version alone must not decide"
