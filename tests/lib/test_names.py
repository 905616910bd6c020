"""The public names: all of them are there, and each brings only what it needs."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import normgeom as ng
import pytest

HEAVY = ("torch._dynamo", "transformers", "accelerate", "pandas", "matplotlib", "plotly", "ipywidgets")
# What is run, one after the other in one process, and which of torch and HEAVY are there afterwards.
STEPS = {
    "import normgeom": [],
    "import normgeom.cli": [],
    "dir(normgeom)": [],
    "normgeom.verify": ["torch"],
    "normgeom.LayerNorm(4), normgeom.rms_norm(__import__('torch').ones(3))": ["torch"],
    "normgeom.Ellipsoid, normgeom.NormJacobian, normgeom.secular, normgeom.exercises": ["torch"],
    "normgeom.find_norms, normgeom.watch": ["torch"],
    "normgeom.Survey, normgeom.recorded": ["torch", "pandas"],
}


def test_a_name_brings_what_it_needs_and_no_more():
    code = "import sys\n"
    for step in STEPS:
        code += f"{step}\nprint(*[name for name in ('torch', *{HEAVY}) if name in sys.modules], sep=',')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [line.split(",") if line else [] for line in done.stdout.split("\n")[:-1]]
    for (step, expected), there in zip(STEPS.items(), found, strict=True):
        assert there == expected, f"after `{step}`"


def test_import_names_nothing_heavy():
    command = [sys.executable, "-X", "importtime", "-c", "import normgeom"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "normgeom" in told, "nothing was timed"
    assert not [line for line in told.splitlines() if any(name in line for name in ("torch", *HEAVY))]


def test_every_public_name_is_there_and_listed():
    assert set(ng.__all__) <= set(dir(ng))
    for name in ng.__all__:
        assert getattr(ng, name) is not None, name
    with pytest.raises(AttributeError, match="module 'normgeom' has no attribute 'layernorm'"):
        _ = ng.layernorm


def test_type_checkers_see_the_same_names():
    """They read the imports under TYPE_CHECKING, which never run."""
    tree = ast.parse(Path(ng.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(seen) == set(ng.__all__)
    for name, module in seen.items():
        there = getattr(import_module(module), name, None) or import_module(f"{module}.{name}")
        assert getattr(ng, name) is there, f"{name} is not that of {module}"
