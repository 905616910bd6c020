"""What holds of a survey and of a training alike: it goes on where it stopped, and its folder is its own."""

import errno
import json
import os
import shutil
from pathlib import Path

import normgeom as ng
import pandas as pd
import pytest
import torch
from normgeom.commands.survey import survey_model
from normgeom.commands.train import train_twins
from normgeom.jobs import PROVENANCE, locked
from normgeom.survey import survey as surveying
from tiny_training import disturb

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer")


def survey(given, out, corpus="long", **changes):
    """Ten batches, nine of four windows and one of one."""
    sizes = dict(tokens=600, length=16, batch_size=4, nulls=1, device="cpu")
    return survey_model(
        **dict(model=str(given / "tiny-gpt2"), out=out, corpus=str(given / f"{corpus}.txt")) | sizes | changes
    )


def train(given, out, corpus="long", **changes):
    """Twins of four updates each."""
    sizes = dict(size="1M", tokenizer="bytes", held_out=80, device="cpu", progress=False)
    return train_twins(**dict(out=out, corpus=str(given / f"{corpus}.txt")) | sizes | changes)


# For each command the call that is made once a batch, how often, and results whose bytes do not depend on the time.
RUNS = {
    "survey": (survey, (ng.Survey, "_measure"), 10, "table.parquet"),
    "training": (train, (torch.optim.AdamW, "step"), 8, "*/*.parquet"),
}


@pytest.fixture(scope="module", params=RUNS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def run(given, kind):
    return lambda out, **changes: RUNS[kind][0](given, out, **changes)


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "folder of" / "its own"
    run(out)
    return out


@pytest.fixture
def no_work(monkeypatch):
    monkeypatch.setattr("normgeom.commands.survey.load_model", lambda *_: pytest.fail("work before the refusal"))
    monkeypatch.setattr("normgeom.commands.train.twin", lambda *_: pytest.fail("work before the refusal"))


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def same_results(out, whole, kind):
    pattern = RUNS[kind][3]
    expected = sorted(path.relative_to(whole) for path in whole.glob(pattern))
    assert expected == sorted(path.relative_to(out) for path in out.glob(pattern))
    for path in expected:
        pd.testing.assert_frame_equal(pd.read_parquet(out / path), pd.read_parquet(whole / path), check_exact=True)
    mine, theirs = (json.loads((folder / PROVENANCE).read_text("utf-8"))["had"] for folder in (out, whole))
    assert {**mine, "finished": ""} == {**theirs, "finished": ""}
    assert not list(out.rglob("*.part")), "an unfinished file is left"


def full(works, *args, **kwargs):
    """A full disk, after half of each file that is written to a path."""
    for path in args:
        if isinstance(path, Path):
            path.write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("calls", [2, 5, -1])
def test_an_interrupted_run_goes_on(run, kind, whole, tmp_path, monkeypatch, calls):
    """In either of the twins; what was done is not done again, but for what lies behind the last checkpoint."""
    _, (owner, name), total, _ = RUNS[kind]
    stopped = calls % total

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        disturb(patch, owner, name, stopped + 1, stop)
        run(tmp_path)
    assert "had" not in json.loads((tmp_path / PROVENANCE).read_text("utf-8"))
    left = total - (stopped if kind == "survey" else stopped - stopped % 2)
    with monkeypatch.context() as patch:
        disturb(patch, owner, name, left + 1, lambda *_, **__: pytest.fail("what was saved is done again"))
        run(tmp_path)
    same_results(tmp_path, whole, kind)


def test_a_finished_run_does_nothing_again(run, kind, whole, tmp_path, monkeypatch):
    out = shutil.copytree(whole, tmp_path / "out")
    disturb(monkeypatch, *RUNS[kind][1], 1, lambda *_, **__: pytest.fail("work that was done"))
    run(out)
    same_results(out, whole, kind)


@pytest.mark.parametrize(
    ("owner", "name", "at"),
    [(Path, "write_text", 1), (Path, "write_text", 2), (pd.DataFrame, "to_parquet", 1), (surveying, "save", 1)],
    ids=["the mark", "the end", "a table", "a state"],
)
def test_a_full_disk_leaves_nothing_half_written(run, kind, whole, tmp_path, monkeypatch, owner, name, at):
    if owner is surveying and kind == "training":
        pytest.skip("it saves no survey")
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left on device"):
        disturb(patch, owner, name, at, full)
        run(out)
    there = {path: content for path, content in contents(tmp_path).items() if path.parent.name != "checkpoint-2"}
    halves = [path for path, content in there.items() if content == b"half" or path.suffix == ".part"]
    assert not halves
    run(out)
    same_results(out, whole, kind)


FOREIGN = {
    "survey": [
        (dict(seed=1), "seed: 0 there, 1 asked for"),
        (dict(tokens=500), "windows: .*'tokens': 600.* there, .*'tokens': 500.* asked for"),
        (dict(dtype="float64"), "dtype: auto there, float64 asked for"),
    ],
    "training": [
        (dict(seed=1), "seed: 0 there, 1 asked for"),
        (dict(steps=7), "size: .*'steps': 4.* there, .*'steps': 7"),
        (dict(batch_size=2), "size: .*'batch': 2"),
        (dict(held_out=64), "held_out: 80 there, 64 asked for"),
    ],
}


@pytest.mark.usefixtures("no_work")
def test_the_folder_of_another_run_is_refused(run, kind, whole):
    before = contents(whole)
    other = (dict(corpus="other"), "corpus: .*'long.txt'.* there, .*'other.txt'.* asked for")
    for changes, named in (*FOREIGN[kind], other):
        with pytest.raises(ValueError, match=rf"^out: .* belongs to another run \({named}.*; name another folder"):
            run(whole, **changes)
    assert contents(whole) == before, "the folder was touched"


@pytest.mark.usefixtures("no_work")
def test_a_folder_in_use_is_refused(run, tmp_path):
    with locked(tmp_path), pytest.raises(BlockingIOError, match=r"^out: .* is in use by another run"):
        run(tmp_path)


def test_the_provenance_names_no_path_of_this_machine(whole, kind, given):
    text = (whole / PROVENANCE).read_text("utf-8")
    noted = json.loads(text)
    assert str(given) not in text and str(whole) not in text
    assert noted["asked"]["work"] == kind and noted["started"] <= noted["had"]["finished"]
    assert noted["asked"]["corpus"]["name"] == "long.txt" and len(noted["asked"]["corpus"]["sha256"]) == 64
    assert set(noted["asked"]["versions"]) == {"python", "torch", "transformers", "tokenizers", "normgeom"}
