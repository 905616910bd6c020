"""The public names: all of them are there, and each brings only what it needs."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import normgeom as ng
import pytest

HEAVY = ("torch", "torch._dynamo", "transformers", "accelerate", "pandas", "matplotlib", "ipywidgets")
# What is run, one after the other in one process, and which of HEAVY are there afterwards.
STEPS = {
    "import normgeom, normgeom.cli": [],
    "dir(normgeom)": [],
    "normgeom.verify, normgeom.rms_norm, normgeom.LayerNorm(4)": ["torch"],
    "normgeom.Ellipsoid, normgeom.NormJacobian, normgeom.secular": ["torch"],
    "normgeom.find_norms, normgeom.watch, normgeom.held_scales": ["torch"],
    "normgeom.Survey, normgeom.recorded": ["torch", "pandas"],
}


def test_a_name_brings_what_it_needs_and_no_more():
    code = "import sys\n"
    for step in STEPS:
        code += f"{step}\nprint(*[name for name in {HEAVY} if name in sys.modules], sep=',')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [line.split(",") if line else [] for line in done.stdout.split("\n")[:-1]]
    for (step, expected), there in zip(STEPS.items(), found, strict=True):
        assert there == expected, f"after `{step}`"


# what works where torchvision is of another torch, as an upgrade leaves it, and what is said else
BESIDE_A_BROKEN_PACKAGE = {
    "a norm": (["-c", "import torch, normgeom as ng; ng.layer_norm(torch.ones(2, 3))"], 0, ""),
    "the version": (["-m", "normgeom.cli", "--version"], 0, ""),
}


@pytest.mark.parametrize(("command", "code", "said"), BESIDE_A_BROKEN_PACKAGE.values(), ids=BESIDE_A_BROKEN_PACKAGE)
def test_beside_a_broken_package(command, code, said, tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms')")
    about = tmp_path / "torchvision-0.1.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1\n")
    path = os.pathsep.join([str(tmp_path), str(Path(ng.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, said)


def test_every_public_name_is_there_and_listed():
    assert set(ng.__all__) <= set(dir(ng))
    for name in ng.__all__:
        assert getattr(ng, name) is not None, name
    with pytest.raises(AttributeError, match="module 'normgeom' has no attribute 'layernorm'"):
        _ = ng.layernorm


def test_names_are_functions_and_classes_but_for_one_module():
    """A name that its module does not have would be the module."""
    modules = {name for name in ng.__all__ if isinstance(getattr(ng, name), ModuleType)}
    assert modules == {"secular"}
