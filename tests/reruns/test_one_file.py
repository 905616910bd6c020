"""Notebooks for Colab in an environment like Colab's: its IPython and transformers, no library, no repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

# What Colab has and `make book` does not, and nothing of Colab's torch: several gigabytes.
VERSIONS = Path(__file__).with_name("colab.txt")
PINS = dict(re.findall(r"^([\w-]+)==(\S+)$", VERSIONS.read_text("utf-8"), re.M))
ORIGIN = "import importlib.util as u; print(u.find_spec('normgeom') and u.find_spec('normgeom').origin)"
SEEN = f"""
import json
from importlib import metadata
import normgeom
print(json.dumps([normgeom.__file__, {{name: metadata.version(name) for name in {list(PINS)}}}]))
"""


@pytest.fixture(scope="session")
def versions(root) -> Path:
    """A folder with Colab's versions, installed once into _build: later runs need no network."""
    folder, part = root / "_build/colab-versions", root / "_build/part/colab-versions"
    stamp = VERSIONS.read_text("utf-8")
    if folder.exists() and (folder / "stamp").read_text() == stamp:
        return folder
    for old in (folder, part):
        shutil.rmtree(old, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", part]
    done = subprocess.run([*command, "-r", VERSIONS], capture_output=True, text=True)
    if done.returncode:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"Colab's versions could not be installed; this needs the network once: {done.stderr}")
    (part / "stamp").write_text(stamp)
    part.rename(folder)
    return folder


@pytest.fixture(scope="module")
def fresh(versions, tmp_path_factory) -> Path:
    """An environment with a pip of its own, Colab's versions and all else that is installed here but the library."""
    folder = tmp_path_factory.mktemp("fresh")
    here, others = Path(sysconfig.get_path("purelib")), folder / "others"
    others.mkdir()
    replaced = {package(entry) for entry in versions.iterdir()}
    for entry in here.iterdir():
        if "normgeom" not in entry.name and package(entry) not in replaced | {"pip"}:
            (others / entry.name).symlink_to(entry)
    venv.create(folder / "venv", with_pip=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")}))
    known = site / "notebook-6.5.7.dist-info"  # Colab has it, old widgets ask pip for it, and no cell uses it
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: notebook\nVersion: 6.5.7\n")
    for old in site.glob("setuptools*"):  # the one that venv brings hides the newer one, which torch asks for
        shutil.rmtree(old)
    (site / "others.pth").write_text(f"{versions}\n{others}\n")
    return folder / "venv"


def package(entry: Path) -> str:
    return entry.name.partition("-")[0]


@pytest.fixture(scope="module")
def elsewhere(root, tmp_path_factory) -> Path:
    """A folder that has a space in its name, and the library's wheel, as uploaded."""
    folder = tmp_path_factory.mktemp("some where")
    build = ["uv", "build", "--quiet", "--no-build-isolation", "--out-dir", str(folder), str(root)]
    subprocess.run(build, check=True)
    return folder


@pytest.fixture(scope="module")
def environment(elsewhere) -> dict[str, str]:
    """Nothing of this session's Python, pip and Jupyter, and no index."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "JUPYTER"))}
    return kept | {"PIP_NO_INDEX": "1", "IPYTHONDIR": str(elsewhere / "ipython")}


@pytest.fixture(scope="module")
def run(fresh, elsewhere, environment):
    """Run code in that environment, in that folder; gives what it printed."""

    def run(code: str) -> str:
        command = [fresh / "bin/python", "-"]
        done = subprocess.run(
            command, input=code, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(ORIGIN) == "None\n", "the environment has the library before the setup: the tests would show nothing"
    return run


@pytest.fixture(scope="module")
def notebooks(root):
    folder = root / "notebooks"
    return {path.relative_to(folder).as_posix(): nbformat.read(path, 4) for path in folder.rglob("*.ipynb")}


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_has_the_same_setup(notebooks):
    (setup,) = {code_cells(notebook)[0].source for notebook in notebooks.values()}
    assert "%pip install" in setup


@pytest.fixture(scope="module")
def execute(run, fresh, elsewhere, environment, notebooks, tmp_path_factory):
    """Run a chapter and some more cells by a kernel of that environment; gives its code cells."""
    share = tmp_path_factory.mktemp("share")
    spec = {"argv": [str(fresh / "bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    (share / "kernels/colab").mkdir(parents=True)
    (share / "kernels/colab/kernel.json").write_text(json.dumps(spec | {"display_name": "", "language": "python"}))

    def execute(name, *more):
        notebook = notebooks[f"{name}.ipynb"]
        notebook.cells += map(nbformat.v4.new_code_cell, more)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JUPYTER_PATH", str(share))
            client = NotebookClient(notebook, kernel_name="colab", timeout=300)
            client.execute(env=environment, cwd=str(elsewhere))
        return code_cells(notebook)

    return execute


@pytest.fixture(scope="module")
def chapter(execute):
    return execute("02-uniform-vector", SEEN)


def test_a_whole_chapter_runs_with_colabs_versions(chapter, fresh):
    wrong = [
        out for cell in chapter for out in cell.outputs if out.output_type == "error" or out.get("name") == "stderr"
    ]
    assert not wrong
    assert all(cell.execution_count for cell in chapter), "a cell that did not run"
    library, versions = json.loads(chapter[-1].outputs[0].text)
    assert versions == PINS, "another environment than Colab's"
    assert Path(library).is_relative_to(fresh), "the library of the repository, not that of the wheel"


@pytest.mark.parametrize("name", ["10-without-the-mean", "type-here"])
def test_chapters_on_networks_run_with_colabs_transformers(execute, name):
    """Their checks assert what the book says of networks; a cell that fails ends the run."""
    *cells, seen = execute(name, SEEN)
    assert all(cell.execution_count for cell in cells), "a cell that did not run"
    assert json.loads(seen.outputs[0].text)[1] == PINS, "another environment than Colab's"
