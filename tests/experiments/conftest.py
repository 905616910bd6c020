"""A toy package with a formula and experiments that go through it, and the command line over its registry."""

import importlib
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the experiments stand beside the library, not in it

FORMULA = '''"""A formula."""


def square(x):
    """Of a number."""
    return x * x  # by hand
'''
MEASURED = '''"""Experiments."""

import os
import time
from pathlib import Path

from experiments.registry import Registry

from toy.formula import square

HERE = Path(__file__).parent
registry = Registry(HERE / "records", HERE / "kept")


@registry.experiment("squares", "Squares.", dict(x=(1, 2, 3), sign=("up", "down")), minutes=2, workers=2, seed="none",
                     summary=lambda rows: rows.drop(columns="pid"))
def squares(x, sign):
    (HERE / f"ran-{x}{sign}-{os.getpid()}").touch()
    while (HERE / "meet").exists() and len({path.name.rpartition("-")[2] for path in HERE.glob("ran-*")}) < 2:
        time.sleep(0.01)  # for another process
    if (HERE / f"stop-{x}").exists():
        raise ValueError("told to stop")
    return dict(square=square(x), pid=os.getpid())


@registry.experiment("two", {"sums": "Sums.", "alike": "All alike."}, [dict(x=(3, 1)), dict(x=(10,))], minutes=1,
                     workers=1)
def two(x):
    return dict(sums=dict(square=square(x), pid=os.getpid()), alike=[dict(value=float("inf"))] * 2)


@registry.experiment("large", "Needs more.", dict(x=(1,)), minutes=0.5, needs=lambda: "a GPU")
def large(x):
    return dict(square=square(x))
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The folder of the toy package; its records are in ``records``."""
    from experiments import stamps

    folder = tmp_path / "toy"
    folder.mkdir()
    for name, text in (("__init__", ""), ("formula", FORMULA), ("measured", MEASURED)):
        (folder / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(stamps, "PACKAGES", ["toy"])
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]


@pytest.fixture
def command(toy):
    """``python -m experiments``, for the toy registry: exit code and output."""
    from experiments.__main__ import main

    def run(*arguments):
        registry = importlib.import_module("toy.measured").registry
        done = CliRunner().invoke(main, arguments, obj=registry)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, done.output

    return run
