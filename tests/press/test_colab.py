"""The notebooks for Colab: what is in the setup cell and what it runs."""

import ast
import hashlib
import io
import os
import subprocess
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from press.colab import colab, setup_source
from press.wheel import wheel
from toybook import make

PROJECT = {"name": "no_such_library", "version": "1", "dependencies": ["torch>=2", "numpy>=1", "no-such-need[x]>=2"]}
FILE = "no_such_library-1-py3-none-any.whl"


@pytest.fixture(scope="module")
def colabs(made):
    done = make(made, "colab")
    assert done.returncode == 0, done.stdout + done.stderr
    return made / "_build/colab"


@pytest.fixture
def pip(monkeypatch):
    """What was asked of pip, with the content of each wheel; nothing is installed."""
    asked = []

    def run(command, **_):
        path = Path(command[-1])
        asked.append((command[1:], path.read_bytes() if path.is_file() else None))
        return subprocess.CompletedProcess(command, pip.status, stderr="no space left")

    pip = type("Pip", (), {"asked": asked, "status": 0})
    monkeypatch.setattr(subprocess, "run", run)
    return pip


def test_only_the_library_is_in_the_wheel(book):
    name, content = wheel(book)
    assert name == "toy-0-py3-none-any.whl"
    modules = [name for name in zipfile.ZipFile(io.BytesIO(content)).namelist() if ".dist-info/" not in name]
    package = book.root / "lib/toy"
    assert modules == sorted(path.relative_to(package.parent).as_posix() for path in package.rglob("*.py"))


def test_the_same_files_give_the_same_wheel(book, copy):
    before = os.umask(0o077)
    try:
        assert wheel(type(book)(copy)) == wheel(book)
    finally:
        os.umask(before)


def test_the_setup_cell_differs_and_folded_cells_have_a_title(made, colabs):
    names = {path.relative_to(colabs) for path in colabs.rglob("*.ipynb")}
    assert len(names) == 3
    for name in names:
        plain, carrying = (nbformat.read(folder / name, as_version=4) for folder in (made / "notebooks", colabs))
        titled = [NotebookNode(cell | {"source": _titled(cell)}) for cell in plain.cells]
        assert [c.source for c in titled] != [c.source for c in plain.cells], "no cell of the toy book is folded"
        changed = [new for old, new in zip(titled, carrying.cells, strict=True) if old != new]
        assert [cell.metadata.get("tags") for cell in changed] == [["setup", "nbval-ignore-output"]]
        for cell in carrying.cells:
            if cell.source.startswith("#@title"):
                assert cell.metadata.cellView == "form"
                assert cell.metadata.jupyter == {"source_hidden": True}
        assert carrying.metadata == plain.metadata


def _titled(cell):
    return f"#@title {cell.metadata.fold}\n{cell.source}" if "fold" in cell.metadata else cell.source


def test_the_cell_carries_its_wheel_and_no_folder_of_this_machine(book, colabs):
    file, content = wheel(book)
    source = next(cell.source for cell in nbformat.read(colabs / "01-mean.ipynb", 4).cells if cell.cell_type == "code")
    assert source == setup_source(book.project, file, content)
    assert source.startswith("#@title Setup: run this first\n")
    ast.parse(source)
    assert hashlib.sha256(content).hexdigest() in source
    assert str(book.root) not in source
    assert str(Path.home()) not in source
    assert not [mark for mark in ("$", "{prf:", "{eq}", ":::") if mark in source]
    assert max(map(len, source.splitlines())) <= 120


def test_colab_is_the_same_twice(book, colabs):
    for name, content in colab(book).items():
        assert (colabs / name).read_bytes() == content


def test_the_wheel_is_installed_alone_then_only_what_is_missing(pip, capsys):
    exec(setup_source(PROJECT, FILE, b"a wheel"), {})
    (alone, content), (rest, _) = pip.asked
    assert alone[:-1] == ["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]
    assert (Path(alone[-1]).name, content) == (FILE, b"a wheel")
    assert rest == ["-m", "pip", "install", "--quiet", "no-such-need[x]>=2"]
    assert capsys.readouterr().out.startswith("Installed: no_such_library 1, no-such-need[x]>=2. torch ")


def test_torch_is_never_installed(pip):
    source = setup_source(PROJECT | {"dependencies": ["torch", "torch-no-such>=1"]}, FILE, b"a wheel")
    exec(source, {})
    assert pip.asked[-1][0][-1] == "torch-no-such>=1"
    assert "'torch'" not in source


def test_what_pip_complains_of_is_shown(pip):
    pip.status = 1
    with pytest.raises(RuntimeError, match="no space left"):
        exec(setup_source(PROJECT, FILE, b"a wheel"), {})
