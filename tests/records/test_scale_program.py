"""Reruns of chapters at other sizes: read, costed, ordered, run, killed and resumed, and what fails is told."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import papermill
import pytest
import torch
from click import ClickException
from click.testing import CliRunner
from normgeom.training.twins import SIZES
from normgeom_lab.inference import SEVEN
from normgeom_lab.training import operations
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from records import needs, scale
from records.needs import Absent, Need, Speed, in_time, need_of
from records.scale import Rerun

ROOT = Path(__file__).parents[2]
SPEED = lambda: Speed(survey=1e9, training=2e9)  # noqa: E731
IDS = dict(vocab_size=256, bos_token_id=None, eos_token_id=None)
HIDDEN = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, **IDS)
STAND_INS = {
    "openai-community/gpt2-xl": lambda: GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, **IDS)),
    "EleutherAI/gpt-neo-1.3B": lambda: GPTNeoForCausalLM(
        GPTNeoConfig(hidden_size=32, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], **IDS)
    ),
    "EleutherAI/pythia-1.4b": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(intermediate_size=64, **HIDDEN)),
    "EleutherAI/gpt-j-6b": lambda: GPTJForCausalLM(GPTJConfig(n_layer=2, n_embd=32, n_head=2, rotary_dim=8, **IDS)),
    "meta-llama/Llama-2-7b-hf": lambda: LlamaForCausalLM(LlamaConfig(intermediate_size=48, **HIDDEN)),
}


@pytest.fixture
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with the book's chapters and notebooks, and reruns/ of its own."""
    for name in ("chapters", "notebooks", "figures", "lib", "records", "_toc.yml", "_config.yml", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "reruns/07-inference").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def save(name, folder):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        STAND_INS[name]().save_pretrained(folder / name)


def test_the_files_of_the_book(at_root):
    reruns = scale.read(Path("reruns"), (), None, {})
    asked = {rerun.parameters.get("model") for rerun in reruns if rerun.chapter == "07-inference"}
    assert set(SEVEN) <= asked, "the paper's table 1"
    trained = {rerun.name: rerun.parameters["size"] for rerun in reruns if rerun.chapter == needs.TRAINS}
    assert {"70M", "160M", "410M", "1B"} <= set(trained) and all(name == size for name, size in trained.items())
    assert {rerun.chapter[:2] for rerun in reruns} == {"07", "08", "09", "10"}
    for rerun in reruns:
        if "out" in rerun.parameters:
            assert rerun.parameters["out"] == str(rerun.kept("")), f"{rerun}: two reruns would share a folder"
        if "directions" in rerun.parameters:
            assert rerun.parameters["directions"] == needs.NULLS, f"{rerun}: its cost is computed for others"


@pytest.mark.parametrize(
    ("only", "content", "said"),
    [
        (("gpt3",), "model: gpt2", "ONLY: expected some of mine, got gpt3"),
        ((), "modle: gpt2", "expected some of model, corpus, tokens, .*, got modle"),
        ((), "- gpt2", "expected parameters by name, got"),
    ],
)
def test_what_is_refused_before_any_work(home, only, content, said):
    (home / "reruns/07-inference/mine.yaml").write_text(content)
    with pytest.raises(ClickException, match=said):
        scale.read(Path("reruns"), only, None, {})


def test_what_is_given_in_place_of_the_files(at_root, tmp_path):
    save("EleutherAI/gpt-j-6b", tmp_path)
    (rerun,) = scale.read(Path("reruns"), ("gpt-j-6b",), tmp_path, dict(corpus="a.txt", tokens=2000))
    assert rerun.parameters["model"] == str(tmp_path / "EleutherAI/gpt-j-6b")
    assert (rerun.parameters["corpus"], rerun.parameters["tokens"]) == ("a.txt", 2000)
    (rerun,) = scale.read(Path("reruns"), ("70M",), tmp_path, dict(corpus="a.txt", tokens=2000))
    assert "tokens" not in rerun.parameters, "a training has none"


def test_the_cost_of_a_survey(tmp_path):
    save("meta-llama/Llama-2-7b-hf", tmp_path)
    given = dict(model=str(tmp_path / "meta-llama/Llama-2-7b-hf"), corpus="stdlib", tokens=10_000)
    need = need_of("07-inference", given, SPEED)
    block = 4 * 32 * 32 + 3 * 32 * 48 + 2 * 32
    working, norms = 2 * block + 32, 5
    assert need.seconds == pytest.approx(40 + 2 * working * 10_000 / 1e9), "two operations a weight and token"
    directions = 2 * norms * 4 * 303 * 32
    assert need.memory == pytest.approx(4 * (working + 256 * 32) + directions + 12 * 4 * 32 * 128 * 32)
    assert need.disk == 0, "it is in a folder"
    later = need_of("09-interpretability", given, SPEED)
    assert later.seconds == pytest.approx(20 + 2 * norms * 2 * working * 10_000 / 1e9), "parts are taken out one by one"


def test_the_cost_of_a_training():
    need = need_of("08-training", dict(size="1M", corpus="stdlib"), SPEED)
    assert need.seconds == pytest.approx(2 * operations(SIZES["1M"]) / 2e9), "both twins"
    half = need_of("08-training", dict(size="1M", corpus="stdlib", steps=300), SPEED)
    assert half.seconds == pytest.approx(need.seconds / 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(model="nobody/has-this", corpus="stdlib"), "'nobody/has-this' cannot be loaded"),
        (dict(model="x", corpus="wikipedia"), "the corpus wikipedia is out of reach .*; name a text: CORPUS=FILE"),
        (dict(model="x", corpus="no.txt"), "there is no text file 'no.txt'"),
    ],
)
def test_what_cannot_be_had(at_root, given, said):
    with pytest.raises(Absent, match=said):
        need_of("07-inference", dict(given, tokens=1000), SPEED)


def test_a_model_behind_a_licence(monkeypatch):
    from huggingface_hub.errors import GatedRepoError

    def refuse(model, **_):
        raise OSError("model: cannot be loaded") from GatedRepoError.__new__(GatedRepoError)

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    with pytest.raises(
        Absent, match=r"behind a licence: accept it at https://huggingface.co/a/b and run `hf auth login`"
    ):
        need_of("07-inference", dict(model="a/b", corpus="stdlib", tokens=1000), SPEED)


def test_a_machine_too_small(at_root, monkeypatch, tmp_path):
    usage = type("Usage", (), dict(free=2e9))
    monkeypatch.setattr(needs, "free_memory", lambda device: 1e9)
    monkeypatch.setattr(needs.shutil, "disk_usage", lambda path: usage)
    words = list(needs.lacking(Need(5e9, 3e9, 1), "07-inference", tmp_path / "not/yet"))
    assert words == ["needs 5 GB of memory, there are 1 GB", "needs 3 GB of disk, there are 2 GB"]
    assert not list(needs.lacking(Need(1e8, 1e8, 1), "08-training", tmp_path))
    reruns = [Rerun("07-inference", "big", dict(model="x"))]
    monkeypatch.setattr(scale, "need_of", lambda *_: Need(5e9, 0, 60))
    runner = CliRunner()
    with runner.isolation() as (out, *_):
        assert list(scale.plan(reruns, SPEED)) == []
        said = out.getvalue().decode()
    assert (
        "07-inference/big: skipped: needs 5 GB of memory, there are 1 GB (memory 5 GB, disk 0 MB, time 60 seconds)"
        in said
    )


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5 seconds"), (600, "10 minutes"), (7200, "2 hours"), (2e5, "2.3 days")]
)
def test_a_time_in_words(seconds, words):
    assert in_time(seconds) == words


def test_in_order_of_cost_and_what_waits_after_what_it_waits_for(home, monkeypatch):
    training = Rerun("08-training", "5M", dict(size="5M", out="_build/scale/08-training/5M"))
    waits = Rerun("07-inference", "twins", dict(model="_build/scale/08-training/5M/layer/model"))
    cheap, dear = (Rerun("07-inference", name, dict(model=name)) for name in ("cheap", "dear"))
    cost = {"5M": 50, "twins": 1, "cheap": 5, "dear": 500}
    monkeypatch.setattr(scale, "planned", lambda rerun, speed: (cost[rerun.name], "fits"))
    ran = []
    for rerun in scale.plan([dear, waits, training, cheap], SPEED):
        ran.append(rerun.name)
        rerun.kept(".json").parent.mkdir(parents=True, exist_ok=True)
        rerun.kept(".json").write_text(json.dumps(dict(version=rerun.version)))
    assert ran == ["cheap", "5M", "twins", "dear"]
    assert list(scale.plan([dear, waits, training, cheap], SPEED)) == [], "finished ones were run again"
    changed = cheap._replace(parameters=dict(model="cheap", tokens=7))
    assert list(scale.plan([changed], SPEED)) == [changed], "another content of the file is another rerun"


def test_one_that_fails_is_told_and_the_others_run(home, monkeypatch):
    from papermill.exceptions import PapermillExecutionError

    ran = []

    def run(rerun, folder, live):
        ran.append(rerun.name)
        if rerun.name == "a":
            raise PapermillExecutionError(7, 7, "", "OutOfMemoryError", "CUDA out of memory", [])

    for name in "ab":
        (home / f"reruns/07-inference/{name}.yaml").write_text("model: x\ncorpus: stdlib\ntokens: 1000\n")
    monkeypatch.setattr(scale, "run", run)
    monkeypatch.setattr(scale, "measured_speed", lambda *_: SPEED())
    monkeypatch.setattr(scale, "need_of", lambda *_: Need(0, 0, 1))
    done = CliRunner().invoke(scale.main, ["--folder", str(home / "records-out")])
    assert ran == ["a", "b"] and done.exit_code == 1
    assert (
        "07-inference/a: OutOfMemoryError: free its memory or take a larger one; the same command goes on"
        in done.output
    )


@pytest.mark.slow
def test_five_families_killed_and_resumed(home):
    """The book's own files, with small models under the names that they ask for."""
    (home / "reruns/07-inference").rmdir()
    (home / "reruns").rmdir()
    (home / "reruns").symlink_to(ROOT / "reruns")
    for name in STAND_INS:
        save(name, home / "models")
    (home / "text.txt").write_text("the norm of the vector is its length, and the mean is its shadow\n" * 600)
    names = ("gpt2-xl", "gpt-neo-1.3b", "pythia-1.4b", "gpt-j-6b", "llama-2-7b", "pythia-6.9b")
    options = ["--models", "models", "--corpus", "text.txt", "--tokens", "1500", "--seconds", "0", "--folder", "out"]
    command = [sys.executable, "-m", "records", "scale", *options, *(f"--only={name}" for name in names)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while not list((home / "_build").rglob("*.json")):
        assert first.poll() is None, f"it ended before the first rerun was done: {first.stdout.read()}"
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    begun = {path: path.stat().st_mtime_ns for path in (home / "_build").rglob("*.json")}
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert all(path.stat().st_mtime_ns == at for path, at in begun.items()), "a finished rerun was run again"
    assert f"{next(iter(begun)).stem}: done" in again.stdout
    assert "07-inference/pythia-6.9b: skipped: 'EleutherAI/pythia-6.9b' cannot be loaded" in again.stdout
    written = sorted(path.stem for path in (home / "out").glob("angles-*.csv"))
    assert written == sorted(f"angles-{name}" for name in names[:-1])
    for name in written:
        kind = "rms" if "llama" in name else "layer"
        assert set(pd.read_csv(home / "out" / f"{name}.csv").kind) == {kind}
        about = json.loads((home / "out" / f"{name}.json").read_text())
        assert about["model"].startswith(("openai-community/", "EleutherAI/", "meta-llama/")), "a path of this machine"
    said = claims_page(home / "out", home / "page.ipynb")
    for name in names[:-1]:
        (row,) = [line for line in said.splitlines() if line.split()[:1] == [name]]
        assert re.search("holds|fails|cannot be told", row) and row.endswith("yes"), row
    assert re.search(r"^pythia-6.9b .*make scale ONLY=pythia-6.9b$", said, re.MULTILINE)


def claims_page(records, out):
    """The tables of the appendix page, of other records than the book's."""
    page = "notebooks/appendix/at-scale.ipynb"
    done = papermill.execute_notebook(page, out, dict(records=str(records)), kernel_name="python3", progress_bar=False)
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    return "\n".join(output.data["text/plain"] for output in outputs if "text/markdown" in output.get("data", {}))
