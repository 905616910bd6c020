"""A folder belongs to one run: held by a process, marked with what it is, refused to all others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import normgeom as ng
import pytest
from normgeom.jobs.folders import LOCK, PROVENANCE, claiming, held, place

RESULTS = ("table-*",)
HOLDS = """
import sys, time
from pathlib import Path
from normgeom.jobs.folders import held
out = Path(sys.argv[1])
with held(out, out / sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def another():
    """Starts a process that holds a folder."""
    running = []

    def start(out, lock=LOCK):
        environment = {**os.environ, "PYTHONPATH": str(Path(ng.__file__).parents[1])}
        command = [sys.executable, "-c", HOLDS, str(out), lock]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout.readline() == "held\n"
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def run(out, asked, result="table-1", work="survey"):
    with claiming(out, work, RESULTS) as claim:
        claim(asked)
        if result:
            (out / result).write_text("x")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# one process at a time


def test_another_process_is_told_at_once_and_a_kill_frees_the_folder(tmp_path, another):
    out = tmp_path / "out"
    process = another(out)
    before = contents(out)
    with pytest.raises(BlockingIOError, match=r"^out: .* is in use by another run; wait until it has ended, or name"):
        run(out, dict(seed=1))
    assert contents(out) == before, "the loser wrote to the folder"
    process.kill()
    process.wait()
    run(out, dict(seed=1))
    assert sorted(contents(out)) == [PROVENANCE, "table-1"], "the lock of the killed one is left"


def test_a_lock_beside_a_folder_that_is_not_there(tmp_path, another):
    another(tmp_path, ".new.lock")
    with (
        pytest.raises(BlockingIOError, match=r"^out: .*new is in use"),
        held(tmp_path / "new", tmp_path / ".new.lock"),
    ):
        pytest.fail("two hold it")


def test_a_lock_that_cannot_be_written_names_the_folder(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("normgeom.jobs.folders.FileLock.acquire", full)
    with (
        pytest.raises(OSError, match=r"^out: .*: No space left on device; what was saved"),
        held(tmp_path, tmp_path),
    ):
        pytest.fail("not held")


# one run


def test_the_same_run_goes_on(tmp_path):
    run(tmp_path, dict(seed=1, model=dict(name="a")))
    started = contents(tmp_path)[PROVENANCE]
    run(tmp_path, dict(seed=1, model=dict(name="a")), "table-2")
    assert contents(tmp_path)[PROVENANCE] == started, "its mark was written again"
    assert json.loads(started)["work"] == "survey"


@pytest.mark.parametrize(
    ("asked", "work", "message"),
    [
        (dict(seed=1), "training", "holds a survey, expected a training or nothing; name another folder"),
        (dict(seed=2), "survey", r"holds another survey \(seed: 1 there, 2 asked for\); name another folder"),
        ({}, "survey", r"holds another survey \(seed: 1 there, None asked for\)"),
    ],
    ids=["another command", "another argument", "fewer arguments"],
)
def test_another_run_is_refused_and_changes_nothing(tmp_path, asked, work, message):
    run(tmp_path, dict(seed=1))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"^out: .* {message}"):
        run(tmp_path, asked, work=work)
    assert contents(tmp_path) == before


def test_what_differs_is_said_in_a_line_however_long_it_is(tmp_path):
    run(tmp_path, dict(directions=[f"random_{i}" for i in range(10000)]))
    with pytest.raises(ValueError, match=r"directions: .* there, .* asked for") as refused:
        run(tmp_path, dict(directions=["uniform"]))
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("text", ["not JSON", "[]", '{"work": "survey", "asked": 3}', '{"asked": {"seed": 1}}'])
def test_a_provenance_of_others_is_kept(tmp_path, text):
    (tmp_path / PROVENANCE).write_text(text)
    with pytest.raises(ValueError, match=r"^out: .* is not the provenance of a survey; name another folder"):
        run(tmp_path, dict(seed=1))
    assert contents(tmp_path) == {PROVENANCE: text.encode()}


def test_results_without_a_mark_are_kept(tmp_path):
    (tmp_path / "table-1").write_text("mine")
    with pytest.raises(ValueError, match=r"^out: .* holds table-1 without provenance.json; name another folder"):
        run(tmp_path, dict(seed=1))
    assert contents(tmp_path) == {"table-1": b"mine"}


@pytest.mark.parametrize("result", [None, "table-1"])
def test_a_run_without_results_leaves_nothing(tmp_path, result):
    out = tmp_path / "of" / "out"
    with pytest.raises(KeyboardInterrupt), claiming(out, "survey", RESULTS) as claim:
        claim(dict(seed=1))
        if result:
            (out / result).write_text("x")
        raise KeyboardInterrupt
    assert (out / PROVENANCE).exists() == out.exists() == bool(result)
    assert (tmp_path / "of").exists() == bool(result), "a folder that was made for it is left"


def test_a_folder_that_was_there_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    run(tmp_path, dict(seed=1), result=None)
    assert contents(tmp_path) == {"notes.txt": b"mine"}


# where it can be


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    Path("link").symlink_to("nowhere")
    Path("circle").symlink_to("circle")
    return tmp_path


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ("", ValueError, r"^out: expected the name of a folder, got ''$"),
        ("file/a/b", NotADirectoryError, r"^out: expected a folder or a new name, .*file is no folder"),
        ("link/a", NotADirectoryError, r"link is no folder; name another$"),
        ("circle/a", OSError, r"^out: circle/a: Too many levels of symbolic links"),
        ("x" * 300, OSError, r"^out: x+: File name too long"),
    ],
    ids=["empty", "below a file", "below a dangling link", "a circle", "too long"],
)
def test_where_no_folder_can_be(given, out, error, message):
    with pytest.raises(error, match=message):
        place(out)
    assert sorted(path.name for path in given.iterdir()) == ["circle", "file", "link"]


def test_where_a_folder_can_be(given):
    for out in (".", "new", "new/of/new", given / "new"):
        assert place(out) == Path(out)
