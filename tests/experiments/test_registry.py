"""Experiments on a toy formula: measured in parallel, resumed, recorded with a stamp, and stale with the formula."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import normgeom as ng
import pandas as pd
import psutil
import pytest
from normgeom_lab.common.recording import record

ROOT = Path(__file__).parents[2]


def edit(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_points_are_measured_in_processes_and_recorded(toy, command, monkeypatch):
    (toy / "meet").touch()
    assert command("squares")[0] == 0
    monkeypatch.setattr("normgeom.records.FOLDER", toy / "records")
    got = ng.recorded("squares")
    assert got.table.to_dict("list") == dict(x=[1, 1, 2, 2, 3, 3], sign=["up", "down"] * 3, square=[1, 1, 4, 4, 9, 9])
    about = json.loads((toy / "records/squares.json").read_text("utf-8"))
    assert about["what"] == "Squares." and about["seed"] == "none"
    assert about["command"] == "make experiments ONLY=squares"
    assert json.loads(about["grid"]) == dict(x=[1, 2, 3], sign=["up", "down"])
    assert about.keys() >= {"date", "versions", "device", "stamp"} and "stamp" not in got.provenance
    before = sorted(toy.glob("ran-*"))
    assert command("squares")[1] == "squares: fresh; to measure it again, delete its record\n"
    assert sorted(toy.glob("ran-*")) == before


def test_a_grid_may_have_parts_and_a_point_fill_several_records(toy, command):
    assert command("two")[0] == 0
    sums, alike = (pd.read_csv(toy / f"records/{name}.csv") for name in ("sums", "alike"))
    assert sums.x.tolist() == [3, 1, 10] and sums.square.tolist() == [9, 1, 100]
    assert sums.pid.nunique() == 3, "with one worker, each point has a fresh process"
    assert alike.value.tolist() == [float("inf")] * 6


def test_a_point_that_fails_is_named_and_the_others_are_kept(toy, command):
    (toy / "stop-2").touch()
    code, said = command("squares")
    assert code == 1 and "squares at x 2, sign up: ValueError: told to stop" in said
    assert not (toy / "records/squares.csv").exists()
    (toy / "stop-2").unlink()
    assert command("squares")[0] == 0
    names = [path.name.rsplit("-", 1)[0] for path in toy.glob("ran-*")]
    assert sorted(names) == sorted(
        [f"ran-{x}{s}" for x in (1, 2, 3) for s in ("up", "down")] + ["ran-2up", "ran-2down"]
    )


@pytest.mark.slow
def test_what_is_killed_goes_on(toy, command):
    edit(toy / "measured.py", "    return dict(square=square(x), pid=os.getpid())\n\n\n@", SLOW + "\n\n\n@")
    code = "from toy.measured import registry; from experiments.__main__ import main; main(['squares'], obj=registry)"
    script = toy.parent / "go.py"
    script.write_text(f"if __name__ == '__main__':\n    {code}\n", "utf-8")
    first = subprocess.Popen([sys.executable, script], env=environment(toy), stdout=subprocess.DEVNULL)
    kept, end = toy / "kept/squares", time.monotonic() + 60
    while not (lines := [line for p in kept.glob("*.jsonl") for line in p.read_text().splitlines() if line]):
        assert first.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    workers = psutil.Process(first.pid).children()
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert workers and not psutil.wait_procs(workers, timeout=20)[1], "workers go on without their parent"
    (path,) = kept.glob("*.jsonl")
    point = json.loads(lines[0])[0]
    path.write_text("\n" + json.dumps([point, dict(squares=[dict(square=7, pid=0)])]) + '\n[{"x": 2, "si')  # cut off
    (toy / "go-on").touch()
    assert subprocess.run([sys.executable, script], env=environment(toy)).returncode == 0
    table = pd.read_csv(toy / "records/squares.csv").set_index(["x", "sign"]).square
    assert table[tuple(point.values())] == 7, "a finished point was measured again"
    assert table.drop(tuple(point.values())).tolist() == [x * x for x, s in table.index if (x, s) != (*point.values(),)]


SLOW = """    import time
    while x > 1 and not (HERE / "go-on").exists():
        time.sleep(0.05)
    return dict(square=square(x), pid=os.getpid())"""


def environment(toy):
    return os.environ | dict(PYTHONPATH=f"{toy.parent}:{ROOT}:{ROOT / 'lib'}")


def test_a_formula_makes_stale_and_a_comment_does_not(toy, command):
    (toy / "records").mkdir()
    for name in ("squares", "sums", "alike"):
        record(name, pd.DataFrame(dict(x=[1])), "Something.", toy / "records", stamp="toy.formula 0")
    assert command("--check", "squares")[1].count("toy.formula, toy.measured changed") == 1
    assert "squares: restamped" in command("--restamp", "squares", "two")[1]
    assert command("--check") == (0, "")
    edit(toy / "formula.py", "  # by hand", "")
    edit(toy / "formula.py", "Of a number", "Of any number")
    edit(toy / "measured.py", '"""Experiments."""', '"""Some experiments."""\n# nothing else')
    assert command("--check") == (0, "")
    edit(toy / "formula.py", "x * x", "x * x + 0")
    code, said = command("--check")
    assert code == 1
    assert "two: stale (toy.formula changed): make experiments ONLY=two" in said
    assert "squares: stale (toy.formula changed): make experiments ONLY=squares" in said
    assert "large" not in said, "the book does without it"
    assert "measured now" in command("squares")[1] and command("--check", "squares") == (0, "")


def test_what_needs_something_is_left_out(toy, command):
    assert command("large")[1] == "large: missing, and skipped, because it needs a GPU\n"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda of: (of / "squares.json").write_text("{"), "squares: stale (squares.json cannot be read: Expecting"),
        (lambda of: (of / "squares.json").unlink(), "squares: missing: make"),
        (lambda of: (of / "squares.csv").unlink(), "squares: missing: make"),
        (lambda of: record("mine", pd.DataFrame(dict(x=[1])), "W.", of), "mine: no experiment writes it"),
    ],
)
def test_records_without_notes_or_table_and_foreign_ones_are_named(toy, command, spoil, said):
    record("squares", pd.DataFrame(dict(x=[1])), "Something.", toy / "records")
    spoil(toy / "records")
    code, output = command("--check")
    assert code == 1 and [line for line in output.splitlines() if said in line], output


def test_names(toy, command):
    code, said = command("cubes")
    assert (code, said) == (1, "Error: name: expected some of large, squares, two, got 'cubes'\n")
    with pytest.raises(ValueError, match=r"^sums: expected a new name, already used: sums$"):
        sys.modules["toy.measured"].registry.experiment("sums", "Again.", {}, minutes=1)
