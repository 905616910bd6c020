"""The folder of a run: one process at a time, marked with what it is, refused to all others, nothing half written."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import normgeom as ng
import pytest
from normgeom.jobs import LOCK, PROVENANCE, atomic_path, claimed, digest, locked, usable_device

ASKED = dict(work="survey", seed=1, sizes=(2, 3))
HOLDS = """
import sys, time
from pathlib import Path
from normgeom.jobs import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def run(out, asked=ASKED, result="table"):
    with claimed(out, asked):
        (out / result).write_text("x")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as part:
        part.write_text("half")
        assert path.read_text() == "old"
        raise KeyboardInterrupt
    assert contents(tmp_path) == {"file": b"old"}
    with atomic_path(path) as part:
        part.write_text("new")
    assert contents(tmp_path) == {"file": b"new"}


def test_another_process_is_refused_at_once_and_a_kill_frees_the_folder(tmp_path):
    out, environment = tmp_path / "out", {**os.environ, "PYTHONPATH": str(Path(ng.__file__).parents[1])}
    command = [sys.executable, "-c", HOLDS, str(out)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=r"^out: .*out is in use by another run; wait"), locked(out):
            pytest.fail("two hold it")
        assert list(contents(out)) == [LOCK], "the loser wrote to the folder"
        process.kill()
    run(out)
    assert sorted(contents(out)) == [PROVENANCE, "table"], "a lock is left"


def test_the_same_run_goes_on(tmp_path):
    run(tmp_path)
    started = contents(tmp_path)[PROVENANCE]
    run(tmp_path, result="table-2")
    assert contents(tmp_path)[PROVENANCE] == started, "its mark was written again"
    assert json.loads(started)["asked"] == dict(work="survey", seed=1, sizes=[2, 3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(work="training"), "work: survey there, training asked for"),
        (dict(seed=2), "seed: 1 there, 2 asked for"),
        (dict(sizes=None), r"sizes: \[2, 3\] there, None asked for"),
        (dict(nulls=0), "nulls: None there, 0 asked for"),
    ],
)
def test_another_run_is_refused_and_changes_nothing(tmp_path, changes, message):
    run(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"^out: .* belongs to another run \({message}\); name another folder"):
        run(tmp_path, ASKED | changes)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (PROVENANCE, "not JSON", "is damaged; put a copy of it back, or name another folder"),
        (PROVENANCE, '{"asked": 3}', "is damaged; put a copy of it back"),
        ("table", "mine", "holds table and no provenance.json; name a new or an empty folder"),
    ],
)
def test_the_work_of_others_is_kept(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"^out: .* {message}"):
        run(tmp_path)
    assert contents(tmp_path) == {name: text.encode()}


@pytest.mark.parametrize("result", [None, "table"])
def test_a_run_without_results_leaves_no_mark(tmp_path, result):
    out = tmp_path / "of" / "out"
    with pytest.raises(KeyboardInterrupt), claimed(out, ASKED):
        assert (out / PROVENANCE).exists(), "what runs is not marked"
        if result:
            (out / result).write_text("x")
        raise KeyboardInterrupt
    assert (out / PROVENANCE).exists() == out.exists() == bool(result)


def test_a_note_takes_entries(tmp_path):
    with claimed(tmp_path, ASKED) as save:
        (tmp_path / "table").write_text("x")
        noted = save(had=dict(tokens=3))
    assert noted["had"] == dict(tokens=3) == json.loads((tmp_path / PROVENANCE).read_text("utf-8"))["had"]


def test_a_digest_is_of_all_bytes_and_all_names(tmp_path):
    out = tmp_path / "model"
    (out / "inner").mkdir(parents=True)
    (out / "inner" / "weights").write_text("x")
    noted = digest(out)
    assert digest(out / "inner" / "weights") == hashlib.sha256(b"x").hexdigest() and digest(out / "nowhere") is None
    (out / "inner").rename(out / "other")
    assert digest(out) != noted, "a renamed file"
    (out / "other").rename(out / "inner")
    assert digest(out) == noted
    (out / "more").touch()
    assert digest(out) != noted, "an empty file more"


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    assert usable_device("cpu").type == "cpu"
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda **_: None)
    assert usable_device(None).type == "cpu"
    for name in ("gpu", "meta"):
        with pytest.raises(ValueError, match=rf"^device: expected cpu, cuda, mps or the like, got '{name}' \("):
            usable_device(name)
