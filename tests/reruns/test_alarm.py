"""The alarm rings: nbval fails where a notebook is wrong, and only there."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

CANARY = Path(__file__).with_name("canary.ipynb")
ROOT = Path(__file__).parents[2]


def nbval(notebook: Path) -> tuple[int, str]:
    # tests/patience.py makes nbval wait for late output
    options = [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "patience",
        "--rootdir",
        str(notebook.parent),
        "--nbval",
    ]
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", *options, str(notebook)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=notebook.parent)
    return done.returncode, done.stdout


def test_the_canary_fails():
    status, output = nbval(CANARY)
    assert status == 1
    assert "1 failed" in output


@pytest.mark.parametrize(("printed", "status", "said"), [("0.5", 0, "1 passed"), ("0.6", 1, "1 failed")])
def test_one_digit_decides(tmp_path, printed, status, said):
    output = v4.new_output("stream", name="stdout", text=f"eq-a: error ≤ {printed}\n")
    cell = v4.new_code_cell("print('eq-a: error ≤', 1 / 2)", outputs=[output], execution_count=1)
    kernel = {"name": "python3", "display_name": "Python 3"}
    path = tmp_path / "digit.ipynb"
    nbformat.write(v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel}), path)
    code, text = nbval(path)
    assert (code, said in text) == (status, True), text


def test_one_digit_of_a_chapter_decides(root, tmp_path):
    chapter = nbformat.read(root / "notebooks/appendix/errata.ipynb", as_version=4)
    first = next(i for i, cell in enumerate(chapter.cells) if "check" in cell.metadata.get("tags", []))
    chapter.cells = chapter.cells[: first + 1]  # the rest would say the same, and takes longer
    (printed,) = chapter.cells[first].outputs
    digit, text = next(i for i, char in enumerate(printed.text) if char.isdigit()), printed.text
    printed.text = f"{text[:digit]}{(int(text[digit]) + 1) % 10}{text[digit + 1 :]}"
    path = tmp_path / "errata.ipynb"
    nbformat.write(chapter, path)
    status, output = nbval(path)
    assert status == 1
    assert "1 failed" in output
