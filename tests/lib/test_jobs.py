"""Files and folders of results: one process at a time, nothing half written, nothing of others lost."""

import hashlib
import json
import os
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path

import normgeom as ng
import pytest
from normgeom.jobs import LOCK, atomic_path, check_empty, digest, locked, usable_device, write_provenance

HOLDS = """
import sys, time
from pathlib import Path
from normgeom.jobs import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


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
    with locked(out):
        pass
    assert not out.exists(), "a lock or an empty folder is left"


def test_the_work_of_others_is_kept(tmp_path):
    out = tmp_path / "out"
    check_empty(out)
    with locked(out):
        check_empty(out)
        (out / "table").write_text("mine")
    with pytest.raises(ValueError, match=r"^out: expected a new or empty folder, .*out holds table; name another$"):
        check_empty(out)


def test_a_note_says_when_and_with_what(tmp_path):
    noted = write_provenance(tmp_path, work="survey", sizes=dict(tokens=3))
    assert noted == json.loads((tmp_path / "provenance.json").read_text("utf-8"))
    assert noted["sizes"] == dict(tokens=3) and noted["versions"]["torch"] == metadata.version("torch")
    assert datetime.fromisoformat(noted["finished"]).tzinfo


def test_a_digest_is_of_all_bytes_and_all_names(tmp_path):
    out = tmp_path / "model"
    (out / "inner").mkdir(parents=True)
    (out / "inner" / "weights").write_text("x")
    noted = digest(out)
    assert digest(out / "inner" / "weights") == hashlib.sha256(b"x").hexdigest()
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
