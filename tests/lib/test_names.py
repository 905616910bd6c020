"""The public names: all of them are there, and each brings only what it needs."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import normgeom as ng
import pytest

HEAVY = ("torch._dynamo", "transformers", "accelerate", "pandas", "matplotlib", "ipywidgets")
# What is run, one after the other in one process, and which of torch and HEAVY are there afterwards.
STEPS = {
    "import normgeom": [],
    "import normgeom.cli": [],
    "dir(normgeom)": [],
    "normgeom.verify": ["torch"],
    "normgeom.LayerNorm(4), normgeom.rms_norm(__import__('torch').ones(3))": ["torch"],
    "normgeom.Ellipsoid, normgeom.NormJacobian, normgeom.secular": ["torch"],
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


@pytest.fixture
def broken_torchvision(tmp_path, monkeypatch):
    """A torchvision of another torch, as an upgrade leaves it: found, and not to be imported."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms')")
    about = tmp_path / "torchvision-0.1.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1\n")
    path = os.pathsep.join([str(tmp_path), str(Path(ng.__file__).parents[1])])
    return {**os.environ, "PYTHONPATH": path}


def test_a_norm_does_not_need_what_models_need(broken_torchvision):
    code = (
        "import sys, torch, normgeom as ng\nng.layer_norm(torch.ones(2, 3))\nassert 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env=broken_torchvision, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_needs_not_even_torch(broken_torchvision):
    code = (
        "import sys\nfrom normgeom.cli import main\n"
        "main(['--version'], standalone_mode=False)\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env=broken_torchvision, capture_output=True, text=True)
    assert done.returncode == 0 and "version 0." in done.stdout, done.stderr


@pytest.mark.slow
def test_a_command_names_what_is_broken(broken_torchvision, tmp_path):
    command = [sys.executable, "-m", "normgeom.cli", "survey", "--model", "gpt2", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=broken_torchvision, capture_output=True, text=True)
    said = "Error: transformers: a package that it imports is broken (RuntimeError: operator torchvision::nms); install"
    assert done.stderr.splitlines()[-1] == f"{said} it anew, or remove it"


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


def test_names_are_functions_and_classes_but_for_one_module():
    """A name that its module does not have would be the module."""
    modules = {name for name in ng.__all__ if isinstance(getattr(ng, name), ModuleType)}
    assert modules == {"secular"}
