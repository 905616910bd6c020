"""A survey goes on where it stopped, and its folder is its own."""

import errno
import json
import os
import shutil
from pathlib import Path

import normgeom as ng
import pandas as pd
import pytest
from normgeom.commands.survey import STATE, TABLE, survey_model
from normgeom.jobs import PROVENANCE, locked
from normgeom.survey import survey as surveying
from runs import disturb

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer")
BATCHES = 10


@pytest.fixture(scope="module")
def run(given):
    """Ten batches, nine of four windows and one of one."""

    def call(out, corpus="long", **changes):
        sizes = dict(tokens=600, length=16, batch_size=4, nulls=1, seed=0, device="cpu", dtype="auto", quiet=False)
        named = dict(model=str(given / "tiny-gpt2"), out=out, corpus=str(given / f"{corpus}.txt"))
        return survey_model(**named | sizes | changes)

    return call


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "folder of" / "its own"
    run(out)
    return out


@pytest.fixture
def no_work(monkeypatch):
    monkeypatch.setattr("normgeom.commands.survey.load_model", lambda *_: pytest.fail("work before the refusal"))


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def same_results(out, whole):
    pd.testing.assert_frame_equal(pd.read_parquet(out / TABLE), pd.read_parquet(whole / TABLE), check_exact=True)
    mine, theirs = (json.loads((folder / PROVENANCE).read_text("utf-8")) for folder in (out, whole))
    assert {**mine, "finished": ""} == {**theirs, "finished": ""}
    assert sorted(path.name for path in out.iterdir()) == sorted([PROVENANCE, STATE, TABLE])


def full(works, *args, **kwargs):
    """A full disk, after half of each file that is written to a path."""
    for path in args:
        if isinstance(path, Path):
            path.write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("done", [2, 5, BATCHES - 1])
def test_an_interrupted_run_goes_on(run, whole, tmp_path, monkeypatch, done):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        disturb(patch, ng.Survey, "_measure", done + 1, stop)
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [STATE]
    with monkeypatch.context() as patch:
        too_often = BATCHES - done + 1
        disturb(patch, ng.Survey, "_measure", too_often, lambda *_, **__: pytest.fail("what was saved is done again"))
        run(tmp_path)
    same_results(tmp_path, whole)


def test_a_finished_run_does_nothing_again(run, whole, tmp_path, monkeypatch):
    out = shutil.copytree(whole, tmp_path / "out")
    disturb(monkeypatch, ng.Survey, "_measure", 1, lambda *_, **__: pytest.fail("work that was done"))
    run(out)
    same_results(out, whole)


@pytest.mark.parametrize(
    ("owner", "name", "at"),
    [(Path, "write_text", 1), (pd.DataFrame, "to_parquet", 1), (surveying, "save", 1)],
    ids=["the note", "a table", "a state"],
)
def test_a_full_disk_leaves_nothing_half_written(run, whole, tmp_path, monkeypatch, owner, name, at):
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left on device"):
        disturb(patch, owner, name, at, full)
        run(out)
    assert not [path for path, content in contents(tmp_path).items() if content == b"half" or path.suffix == ".part"]
    run(out)
    same_results(out, whole)


FOREIGN = [
    (dict(seed=1), "is of another survey: expected the same seed, 1, got 0; delete it or name another"),
    (dict(nulls=2), "is of another survey: expected the same directions, "),
    (dict(dtype="float64"), "is of another survey: expected the same fingerprint, "),
    (dict(tokens=500), "holds 10 batches, more than these 8; delete it or name another"),
    (dict(corpus="other"), "holds other batches than these; delete it or name another"),
    (dict(length=8), "holds other batches than these; delete it or name another"),
]


def test_the_folder_of_another_run_is_refused(run, whole, monkeypatch):
    before = contents(whole)
    monkeypatch.setattr(ng.Survey, "_measure", lambda *_: pytest.fail("a batch was measured before the refusal"))
    for changes, named in FOREIGN:
        with pytest.raises(ValueError, match=rf"^checkpoint: .*{STATE} {named}"):
            run(whole, **changes)
    assert contents(whole) == before, "the folder was touched"


@pytest.mark.usefixtures("no_work")
def test_the_files_of_others_are_kept(run, tmp_path):
    (tmp_path / "thesis").write_text("mine")
    with pytest.raises(ValueError, match=r"^out: expected a new or empty folder, .* holds thesis; name another"):
        run(tmp_path)
    assert list(contents(tmp_path).values()) == [b"mine"]


@pytest.mark.usefixtures("no_work")
def test_a_folder_in_use_is_refused(run, tmp_path):
    with locked(tmp_path), pytest.raises(BlockingIOError, match=r"^out: .* is in use by another run"):
        run(tmp_path)


def test_the_provenance_names_no_path_of_this_machine(whole, given):
    text = (whole / PROVENANCE).read_text("utf-8")
    noted = json.loads(text)
    assert str(given) not in text and str(whole) not in text
    assert noted["corpus"]["name"] == "long.txt" and len(noted["corpus"]["sha256"]) == 64
    assert set(noted["versions"]) == {"python", "torch", "transformers", "tokenizers", "normgeom"}
