"""A toy book, built once by the real Makefile; tests of refusals and outputs work on copies of it."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from press.book import Book
from toybook import ROOT, make

TOY = Path(__file__).with_name("toy")


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Path:
    """The sources of the toy book with the real Makefile, configuration and press."""
    folder = tmp_path_factory.mktemp("book") / "toy"
    shutil.copytree(TOY, folder)
    for name in ("lib/press", "chapters/_static"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    # As if the project were installed: MyST-NB finds what shows images by its entry point.
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    lines = [f"[{group}]\n{name} = {value}\n" for group, of in points.items() for name, value in of.items()]
    (folder / "lib/toy-0.dist-info").mkdir()
    (folder / "lib/toy-0.dist-info/entry_points.txt").write_text("".join(lines), "utf-8")
    for name in ("Makefile", "_config.yml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "lib/normgeom").mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.fixture(scope="session")
def made(toy) -> Path:
    """The toy book after ``make book notebooks``."""
    done = make(toy, "book", "notebooks")
    assert done.returncode == 0, done.stdout + done.stderr
    # The reference page imports the library; this folder's own toy/ is none.
    sys.path.insert(0, str(toy / "lib"))
    sys.modules.pop("toy", None)
    return toy


@pytest.fixture
def copy(made, tmp_path) -> Path:
    """A copy of the built toy book that a test may spoil."""
    return shutil.copytree(made, tmp_path / "toy", symlinks=True)


@pytest.fixture
def book(made) -> Book:
    return Book(made)
