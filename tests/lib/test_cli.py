"""The command: options, messages, several processes, and a kill in the middle."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from normgeom.cli import main
from normgeom.commands import survey
from normgeom.training.twins import SIZES
from tiny_models import tiny

TOKENS, LENGTH, BATCH_SIZE, BATCHES = 2400, 16, 5, 30
COMMIT = "0123456789abcdef" * 2 + "01234567"
# The command, with a line in a file for every batch that was measured and a moment's rest after it.
LOGGED = """
import sys, time
from normgeom.survey.survey import Survey
measure = Survey._measure
def logged(self, batch, digest):
    result = measure(self, batch, digest)
    with open(sys.argv[1], "a") as file:
        print(hash(batch.numpy().tobytes()), file=file)
    time.sleep(0.03)
    return result
Survey._measure = logged
from normgeom.cli import main
main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    tiny("gpt2", vocab_size=256).save_pretrained(folder / "tiny")
    (folder / "text.txt").write_text("".join(f"{i}: γ ⊙ n + β, as it was said\n" for i in range(300)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def arguments(folder):
    given = dict(model=folder / "tiny", corpus=folder / "text.txt", tokens=TOKENS, length=LENGTH, device="cpu")
    more = {"batch-size": BATCH_SIZE, "directions": "uniform,random_a,matched_a"}
    return ["survey", *(str(part) for key, value in {**given, **more}.items() for part in (f"--{key}", value))]


@pytest.fixture(scope="module")
def undisturbed(arguments, tmp_path_factory):
    """The result of one process that nothing disturbed."""
    out = tmp_path_factory.mktemp("out")
    result = CliRunner().invoke(main, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out, result


def table(out):
    return pd.read_parquet(out / survey.TABLE)


def noted(out):
    return json.loads((out / survey.PROVENANCE).read_text("utf-8"))


def environment(**changes):
    library = str(Path(ng.__file__).parents[1])
    return {
        **os.environ,
        "PYTHONPATH": library,
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
        "PYTHONHASHSEED": "0",
        **changes,
    }


# one process


def test_a_survey(undisturbed):
    out, result = undisturbed
    assert result.stdout == f"{TOKENS} tokens: {out}/table.parquet\n"
    assert set(table(out).direction) == {"uniform", "random_a", "matched_a"}
    assert noted(out)["had"]["batches"] == BATCHES


def test_the_bar_knows_how_many_batches_there_are(undisturbed):
    assert f"{BATCHES}/{BATCHES}" in undisturbed[1].stderr, "no total: the bar cannot tell the time that is left"


def test_directions_by_commas_and_by_repetition(arguments, tmp_path):
    asked = ["--directions", "signs_a", "--directions", "uniform,random_b", "--tokens", "64"]
    result = CliRunner().invoke(main, [*arguments[:-2], *asked, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert noted(tmp_path)["asked"]["directions"] == ["signs_a", "uniform", "random_b"]


def test_nulls_are_added(arguments, tmp_path):
    result = CliRunner().invoke(main, [*arguments, "--nulls", "2", "--tokens", "64", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    drawn = [f"{null}_00{i}" for null in ("random", "signs", "matched") for i in range(2)]
    assert list(table(tmp_path).direction.unique()) == ["uniform", "random_a", "matched_a", *drawn]


def test_a_report_is_asked_for(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "normgeom.commands.report.write_report",
        lambda model, out, parameters: asked.append((model, out, parameters)) or out,
    )
    out = str(tmp_path / "a.html")
    result = CliRunner().invoke(main, ["report", "some/model", out, "-p", "tokens", "5000", "-p", "corpus", "my.txt"])
    assert result.exit_code == 0, result.output
    assert asked == [("some/model", out, {"tokens": "5000", "corpus": "my.txt"})]
    assert result.stdout == f"{out}\n"


def test_a_report_that_fails_is_a_line(monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError("report: a cell failed\nValueError: tokens: expected more")

    monkeypatch.setattr("normgeom.commands.report.write_report", fail)
    result = CliRunner().invoke(main, ["report", "some/model", str(tmp_path / "a.html")])
    assert result.exit_code == 1
    assert result.stderr == "Error: report: a cell failed ValueError: tokens: expected more\n"


def test_a_warning_is_a_line(undisturbed):
    _, result = undisturbed
    assert "Warning: " in result.stderr and "has no tokenizer" in result.stderr
    assert "UserWarning" not in result.stderr and ".py:" not in result.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--dtype", "int8"], "Error: dtype: expected one of auto, float64, float32, bfloat16, float16, got 'int8'\n"),
        (["--device", "gpu"], "Error: device: expected 'cpu', 'cuda', 'mps' or the like, got 'gpu'"),
        (["--directions", "north"], "Error: directions: expected 'uniform', 'random_…'"),
        (["--tokens", "15"], "Error: tokens: expected at least one window of 16, got 15\n"),
        (["--corpus", "a" * 5000], "Error: corpus: expected 'stdlib'"),
        (["--corpus", "b\udcff"], "Error: corpus: expected 'stdlib' (needs no network), "),
        (["--model", "a" * 300], "Error: model: 'aaa"),
        (["--out", "b\udcff"], "Error: out: expected a name in UTF-8, got b'b\\xff'"),
        (["--corpus", "nowhere.txt"], "Error: corpus: expected 'stdlib' (needs no network), 'wikipedia', "),
        (["--model", "no/such/model"], "Error: model: there is no folder 'no/such/model'"),
        (["--tokens", "0"], "Invalid value for '--tokens': 0 is not in the range x>=1."),
        (["--length", "many"], "Invalid value for '--length': 'many' is not a valid integer range."),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_a_line(arguments, tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out"), *changes])
    assert result.exit_code in (1, 2) and message in result.stderr
    last = result.stderr.rstrip("\n").splitlines()[-1]
    assert last.startswith("Error: ") and len(last) < 500, "more than a line"
    assert isinstance(result.exception, SystemExit), "a traceback"
    assert not (tmp_path / "out").exists(), "something was written"


def test_output_that_cannot_be_written_is_said_after_the_work(arguments, undisturbed, tmp_path, monkeypatch):
    def full(message="", err=False, **_):
        if not err:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("click.echo", full)
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), "a traceback"
    assert (tmp_path / "table.parquet").read_bytes() == (undisturbed[0] / "table.parquet").read_bytes()


def test_a_folder_in_place_of_the_table_is_said_before_any_work(arguments, tmp_path, monkeypatch):
    (tmp_path / "table.parquet").mkdir()
    monkeypatch.setattr(ng.Survey, "run", lambda *_, **__: pytest.fail("work before the refusal"))
    (tmp_path / "provenance.json").write_text('{"work": "survey", "asked": {}}')
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)])
    assert "a folder is in the way (table.parquet)" in result.stderr


def test_an_error_of_several_lines_is_a_line(arguments, tmp_path, monkeypatch):
    def run(*args, **kwargs):
        raise ValueError("model: one\n  two\n")

    monkeypatch.setattr(ng.Survey, "run", run)
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)])
    assert result.stderr.endswith("\nError: model: one two\n")


def test_an_out_that_is_a_file(arguments, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "file")])
    assert result.exit_code == 2 and "is a file" in result.stderr
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("missing", ["--model", "--out"])
def test_what_must_be_given(missing):
    given = {"--model": "m", "--out": "o"}
    del given[missing]
    result = CliRunner().invoke(main, ["survey", *(part for pair in given.items() for part in pair)])
    assert result.exit_code == 2 and f"Missing option '{missing}'" in result.stderr


def test_too_little_memory_is_a_line(arguments, tmp_path, monkeypatch):
    def run(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(ng.Survey, "run", run)
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)])
    assert "Error: CUDA out of memory. Less --batch-size, --at-once or --length can help.\n" in result.stderr


@pytest.mark.parametrize("error", [RuntimeError("shapes"), ValueError("not about an argument"), KeyError("model: x")])
def test_what_a_user_cannot_mend_keeps_its_traceback(arguments, tmp_path, monkeypatch, error):
    def run(*args, **kwargs):
        raise error

    monkeypatch.setattr(ng.Survey, "run", run)
    assert CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)]).exception is error


def test_help_and_version():
    assert "survey" in CliRunner().invoke(main, ["-h"]).stdout
    shown = CliRunner().invoke(main, ["survey", "--help"]).stdout
    for option in ("model", "out", "tokens", "corpus", "length", "batch-size", "directions", "seed"):
        assert f"--{option}" in shown
    for size in SIZES:
        assert size in CliRunner().invoke(main, ["train", "--help"]).stdout, f"{size} is taken and not said"
    assert "0." in CliRunner().invoke(main, ["--version"]).stdout


# several processes


@pytest.mark.slow
def test_two_processes_give_the_table_of_one(arguments, undisturbed, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "normgeom.cli", *arguments, "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tokens: ") == 1, "the first process alone reports"
    one, two = table(undisturbed[0]), table(tmp_path)
    numbers = one.select_dtypes("number").columns
    assert two.drop(columns=numbers).equals(one.drop(columns=numbers))
    off = np.nanmax(np.abs(two[numbers].to_numpy() - one[numbers].to_numpy()))
    assert off <= 1e-9, f"the table of two processes is off by {off:.1e}: not the same batches, or another pilot?"
    states = [ng.Survey.load(tmp_path / survey.STATE.format(rank, 2)) for rank in (0, 1)]
    assert [state.batches for state in states] == [BATCHES // 2] * 2
    asked, had = noted(tmp_path)["asked"], noted(tmp_path)["had"]
    assert (asked["processes"], had["tokens"], had["tokens_read"], had["batches"]) == (2, TOKENS, TOKENS, BATCHES)


# a kill


@pytest.mark.slow
def test_a_killed_survey_goes_on(folder, arguments, undisturbed, tmp_path):
    """The model comes by its name out of the hub's cache, as after a download."""
    cached = tmp_path / "home" / "hub" / "models--org--tiny"
    shutil.copytree(folder / "tiny", cached / "snapshots" / COMMIT)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    out, log = tmp_path / "out", tmp_path / "log"
    log.touch()
    command = [sys.executable, "-c", LOGGED, str(log), *arguments, "--model", "org/tiny", "--out", str(out)]
    offline = environment(HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
    state = out / survey.STATE.format(0, 1)

    def start():
        return subprocess.Popen(command, env=offline, stderr=subprocess.PIPE, text=True)

    first = start()
    until = time.monotonic() + 60
    while not (state.exists() and len(log.read_text().splitlines()) >= 5):
        assert first.poll() is None and time.monotonic() < until, first.communicate()[1]
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    held, before = ng.Survey.load(state).batches, log.read_text().splitlines()
    assert 0 < held < BATCHES and not (out / survey.TABLE).exists(), "killed too late to show anything"

    second = start()
    _, errors = second.communicate(timeout=120)
    assert second.returncode == 0, errors
    pd.testing.assert_frame_equal(table(out), table(undisturbed[0]), check_exact=True)
    assert noted(out)["asked"]["model"] == dict(name="org/tiny", revision=None, commit=COMMIT)
    assert noted(out)["had"]["digest"] == noted(undisturbed[0])["had"]["digest"]
    measured = log.read_text().splitlines()
    assert len(set(measured)) == BATCHES, "a batch was left out"
    assert len(measured) - len(before) == BATCHES - held, "what the state holds was measured again"
