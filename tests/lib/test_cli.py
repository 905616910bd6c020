"""The command: options, one line for what a user can mend, and a bare installation."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import normgeom as ng
import pandas as pd
import pytest
from click.testing import CliRunner
from normgeom.cli import main
from normgeom.commands import survey
from runs import disturb
from tiny_models import tiny

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(ng.__file__).parents[1]),
    "TQDM_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}
# What a bare installation has not.
MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""
MODELS = {"transformers", "accelerate", "safetensors", "pandas", "pyarrow", "tqdm", "filelock", "huggingface_hub"}
NOTEBOOKS = {"matplotlib", "IPython", "ipywidgets"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    tiny("gpt2", vocab_size=256).save_pretrained(folder / "tiny")
    (folder / "text.txt").write_text("".join(f"{i}: γ ⊙ n + β, as it was said\n" for i in range(300)), encoding="utf-8")
    return folder


@pytest.fixture
def arguments(folder, tmp_path):
    """Complete command lines, by their command; the results go to ``out`` in the test's folder."""
    model, text, out = str(folder / "tiny"), str(folder / "text.txt"), str(tmp_path / "out")
    some = f"--corpus {text} --device cpu --out {out}"
    return dict(
        survey=f"--model {model} --tokens 2.4e3 --length 16 --batch-size 5 --nulls 1 {some}".split(),
        convert=[model, out],
    )


def invoke(command, *words):
    return CliRunner().invoke(main, [command, *map(str, words)])


def test_a_survey(arguments, tmp_path):
    result = invoke("survey", *arguments["survey"])
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    assert result.stdout == f"2400 tokens: {out}/table.parquet\n"
    drawn = [f"signs_{i:03d}" for i in range(30)] + ["random_000"]
    assert list(pd.read_parquet(out / survey.TABLE).direction.unique()) == ["uniform", *drawn]
    assert "30/30" in result.stderr, "no total: the bar cannot tell the time that is left"
    said = [line for line in result.stderr.splitlines() if "Warning" in line]
    assert len(said) == 1 and said[0].startswith("Warning: ") and said[0].endswith("of the text are its token ids")


# What each command says of what cannot be, in its last line, before any work.
BAD = [
    ("survey", "--tokens 15", "Error: tokens: expected at least one window of 16, got 15"),
    ("survey", "--corpus nowhere.txt", "Error: corpus: expected 'stdlib' (needs no network), 'wikipedia' or "),
    ("survey", "--model no/such/model", "Error: model: 'no/such/model' cannot be loaded (OSError: Repo id must be "),
    ("survey", "--model nobody/nothing", "Error: model: 'nobody/nothing' cannot be loaded (OSError: "),
    ("survey", "--out full", "Error: out: expected a new or empty folder, full holds mine; name another"),
    ("survey", "--model t5", "Error: model: expected one that reads one text, got a T5Config"),
    ("convert", "short.txt out", "Error: model: 'short.txt' cannot be loaded (OSError: "),
    ("convert", "t5 out", "Error: model: 't5' cannot be loaded ("),
    ("convert", "tiny full", "Error: out: expected a new or empty folder, "),
]


@pytest.mark.parametrize(("command", "changes", "message"), BAD, ids=[f"{c} {w}" for c, w, _ in BAD])
def test_bad_input_is_one_line(arguments, folder, tmp_path, monkeypatch, command, changes, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "tiny", "tiny")
    tiny("t5").save_pretrained("t5")
    Path("full").mkdir()
    for name in ("full/mine", "short.txt"):
        Path(name).write_text("mine")
    there = sorted(tmp_path.rglob("*"))
    given = arguments[command] if changes.startswith("-") else []
    result = invoke(command, *given, *changes.split())
    last = result.stderr.rstrip("\n").splitlines()[-1]
    assert result.exit_code == 2 and last.startswith(message), result.output
    assert isinstance(result.exception, SystemExit) and len(last) < 600, "a traceback, or a message of pages"
    assert sorted(tmp_path.rglob("*")) == there, "something was written"


@pytest.mark.parametrize("error", [ValueError, TypeError, OSError, ImportError, RuntimeError, KeyError])
def test_an_error_is_a_line_unless_it_is_a_bug(arguments, monkeypatch, error):
    def run(*args, **kwargs):
        raise error("model: one\n  two\n")

    monkeypatch.setattr(ng.Survey, "run", run)
    result = invoke("survey", *arguments["survey"])
    if error in (RuntimeError, KeyError):
        assert type(result.exception) is error, "a bug without its traceback"
    else:
        assert result.exit_code == 2 and result.stderr.endswith("\nError: model: one two\n")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "Stopped: the same command resumes from here"),
        (ValueError("model: bad"), 2, "Error: model: bad"),
    ],
)
def test_what_ends_a_run_is_said_below_its_bar(arguments, tmp_path, monkeypatch, error, status, said):
    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        disturb(patch, ng.Survey, "_measure", 2, fail)
        result = invoke("survey", *arguments["survey"])
    *before, last = result.stderr.splitlines()
    assert (result.exit_code, last) == (status, said) and "/30" in before[-1]
    assert invoke("survey", *arguments["survey"]).exit_code == 0, "the same command did not go on"


def test_ctrl_c_where_nothing_is_kept(arguments, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("normgeom.commands.convert.to_rms_norm", fail)
    result = invoke("convert", *arguments["convert"])
    said = "Stopped: the same command starts again from the beginning"
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["survey", "convert"])
def test_a_quiet_run_has_no_bar(arguments, command):
    """Nor has any what transformers shows while it loads."""
    quiet = [] if command == "convert" else ["--quiet"]
    result = invoke(command, *arguments[command], *quiet)
    assert result.exit_code == 0 and not re.search(r"it/s|batch/s|\d%|Loading", result.stderr), result.stderr


def bare(code, missing, *words):
    """What Python says at last where packages are missing."""
    command = [sys.executable, "-c", MISSING.format(missing=missing) + code, *words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    return done.returncode, (done.stderr or done.stdout).rstrip().rpartition("\n")[2]


def test_a_bare_installation_has_norms_geometry_and_the_norms_of_a_module():
    code = """
import torch, normgeom as ng
x, model = torch.randn(3, 4, dtype=torch.float64), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
ng.layer_norm(x), ng.rms_norm(x), ng.LayerNorm(4), ng.HeadNorm, ng.DyT, ng.angle(x, ng.uniform_vector(4).double())
ng.Ellipsoid.of(model[1]).semi_axes, ng.NormJacobian(x[0]).dense(), ng.secular.eigvalsh(torch.ones(3))
ng.verify("a statement", 0.0, 1.0)
sites, seen = ng.find_norms(model, torch.randn(2, 4)), []
with ng.watch(model, sites, lambda site, x, y: seen.append(x)):
    model(torch.randn(2, 4))
print(len(sites), len(seen))
"""
    assert bare(code, MODELS | NOTEBOOKS | {"click"}) == (0, "1 1")


@pytest.mark.parametrize(
    ("code", "missing", "said"),
    [
        (
            "import normgeom as ng; ng.Survey",
            MODELS,
            "normgeom.Survey needs pandas, which is missing: install normgeom[models]",
        ),
        ("import normgeom as ng; ng.explore", NOTEBOOKS, "which is missing: install normgeom[notebooks]"),
        ("import normgeom.__main__", {"click"}, "click is missing: install normgeom[models]"),
        ("import normgeom.__main__", {"transformers"}, "Error: transformers is missing: install normgeom[models]"),
    ],
)
def test_what_is_missing_names_its_extra(code, missing, said):
    status, last = bare(code, missing, "convert", "model", "out")
    assert status and last.endswith(said)
