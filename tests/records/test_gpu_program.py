"""What a GPU is for, one step after the other: with steps that only pretend, and on a CPU with the tiny plan."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import normgeom as ng
import pytest
from click.testing import CliRunner
from normgeom.cli import main as normgeom_main
from normgeom.commands.train import train_twins
from normgeom.jobs import locked
from normgeom.records import FOLDER

ROOT = Path(__file__).parents[2]
PARTS = ("loss", "curve", "angles", "forms")


def step(name, code="pass", seconds=1, **more):
    from records.steps import Step

    return Step(name, f"what {name} does", seconds, (sys.executable, "-c", code), **more)


def appending(path, words="x"):
    return f"open({str(path)!r}, 'a').write({words!r})"


def run(steps, kept, seconds=60):
    from records.steps import run_all

    return run_all(steps, kept, seconds)


def gpu(*options):
    from records.__main__ import main

    return CliRunner().invoke(main, ["gpu", *map(str, options)])


def test_steps_run_in_their_order_and_once(tmp_path, capsys):
    seen = tmp_path / "seen"
    steps = [step(name, appending(seen, name)) for name in "ba"]
    assert run(steps, tmp_path / "kept") == {"b": "finished", "a": "finished"}
    assert run(steps, tmp_path / "kept") == {"b": "finished before", "a": "finished before"}
    assert seen.read_text() == "ba"
    said = capsys.readouterr().out
    assert "b: what b does; it may take 1 s, 60 s are left" in said and "b: finished before" in said
    steps[0] = step("b", appending(seen, "other"))
    assert run(steps, tmp_path / "kept") == {"b": "finished", "a": "finished before"}, "another command is another step"
    assert seen.read_text() == "baother"


def test_no_time_no_work(tmp_path, capsys):
    steps = [step("quick", appending(tmp_path / "seen"), seconds=0), step("training", resumes=True)]
    assert run(steps, tmp_path / "kept", seconds=0) == {"quick": "skipped", "training": "skipped"}
    assert not (tmp_path / "seen").exists()
    assert "training: skipped; what training does may take 1 s, 0 s are left" in capsys.readouterr().out


def test_what_does_not_fit_is_skipped_and_what_fits_is_run(tmp_path):
    steps = [
        step("long", seconds=7200),
        step("short"),
        step("training", seconds=7200, resumes=True),
    ]
    expected = {"long": "skipped", "short": "finished", "training": "finished"}
    assert run(steps, tmp_path, seconds=3600) == expected, "a training begins if it can reach a checkpoint"
    assert run(steps[2:], tmp_path / "other", seconds=50) == {"training": "skipped"}


@pytest.mark.parametrize(
    "code, words",
    [
        ("import torch; raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')", "nvidia-smi"),
        ("raise RuntimeError('Failed to find C compiler.')", "install a C and C++ compiler"),
        ("raise OSError(28, 'No space left on device')", "make room"),
        ("import sys; print('1 failed, 4 passed'); sys.exit(3)", "the same command tries it again"),
    ],
)
def test_a_step_that_fails_is_told_and_the_rest_runs(code, words, tmp_path, capsys):
    steps = [step("before"), step("fails", code, smaller="--shape 1 2"), step("after")]
    assert run(steps, tmp_path) == {"before": "finished", "fails": "failed", "after": "finished"}
    (told,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fails: failed")]
    assert words in told and str(tmp_path / "fails.log") in told
    assert told.count("--shape 1 2") == ("less" in told), "by what it would take less"
    steps[1] = step("fails")
    assert run(steps, tmp_path) == {"before": "finished before", "fails": "finished", "after": "finished before"}


def test_a_failed_end_counts(tmp_path):
    """What writes the result of a training fails: the training is there, and is gone through again."""
    failing = (sys.executable, "-c", "raise ValueError('no')")
    assert run([step("a", then=failing)], tmp_path) == {"a": "failed"}
    assert run([step("a", then=(sys.executable, "-c", "pass"))], tmp_path) == {"a": "finished"}


COUNTING = """
import subprocess, sys, time
file = {!r}
def there(): return len(open(file).read()) if __import__('os').path.exists(file) else 0
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])  # ended with it, or nothing returns
for _ in range(there(), 8):
    open(file, 'a').write('x')
    time.sleep(0.5)
"""


def test_the_deadline_stops_a_training_which_goes_on_next_time(tmp_path, capsys):
    training = step("training", COUNTING.format(str(tmp_path / "count")), resumes=True)
    assert run([training, step("after")], tmp_path, seconds=2) == {"training": "stopped", "after": "skipped"}
    assert 0 < len((tmp_path / "count").read_text()) < 8
    assert "goes on from its last checkpoint" in capsys.readouterr().out
    assert run([training], tmp_path) == {"training": "finished"}
    assert len((tmp_path / "count").read_text()) == 8, "not gone on where it was stopped"


KILLED = """
import signal, sys
from pathlib import Path
from records.steps import Step, run_all
python, kept = sys.executable, Path({!r})
first = Step('first', 'f', 1, (python, '-c', "open({!r}, 'a').write('x')"))
for number, handler in {{signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}}.items():
    signal.signal(number, handler)  # behind nohup, or in the background, they are ignored
code = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
endless = Step('endless', 'e', 1, (python, '-c', code))
run_all([first, endless], kept, 100)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_killed_in_the_midst(how, tmp_path):
    code = KILLED.format(str(tmp_path / "kept"), str(tmp_path / "seen"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as program:
        pid = next(int(line.split()[1]) for line in program.stdout if line.startswith("pid"))
        program.send_signal(how)
        program.stdout.read()
    assert program.returncode
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    steps = [step("first", appending(tmp_path / "seen")), step("endless")]
    assert run(steps, tmp_path / "kept") == {"first": "finished before", "endless": "finished"}
    assert (tmp_path / "seen").read_text() == "x", "a finished step ran again"


@pytest.fixture(params=["cuda", "cpu"])
def planned(request, tmp_path):
    from records.gpu import plan_steps

    return plan_steps(request.param, "stdlib", tmp_path / "kept", tmp_path / "records")


def test_every_planned_command_is_one(planned, tmp_path):
    """Parsed and not run: a GPU's plan must not fail by a misspelt option."""
    from records.__main__ import main

    for planned_step in planned:
        for command in filter(None, (planned_step.command, planned_step.then)):
            assert command[:2] == (sys.executable, "-m")
            program, *arguments = command[2:]
            if program == "pytest":
                assert (ROOT / arguments[-1]).is_file()
                continue
            group = {"records": main, "normgeom": normgeom_main}[program]
            context = group.commands[arguments[0]].make_context(arguments[0], arguments[1:])
            assert context.params.get("folder", tmp_path / "records") == tmp_path / "records"


def test_the_order_is_that_of_worth(planned):
    names = [planned_step.name for planned_step in planned]
    assert names[:4] == ["tests", "norms", "survey", "converted"]
    assert all(name.startswith("twins-") for name in names[4:]) and len(names) > 4
    assert [planned_step.resumes for planned_step in planned] == 4 * [False] + (len(names) - 4) * [True]


def test_a_gpu_is_planned_for_in_40_minutes(tmp_path):
    from records.gpu import plan_steps

    steps = plan_steps("cuda", "stdlib", tmp_path, tmp_path)
    assert [each.name for each in steps[4:]] == ["twins-10M-0", "twins-10M-1", "twins-70M-0", "twins-70M-1"]
    assert sum(each.seconds for each in steps) < 40 * 60
    told = shlex.join(steps[-1].command)
    assert "--precision bf16" in told and "--device cuda" in told and "--tokenizer bytes" in told


def test_what_cannot_be_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("records.gpu.FOLDER", tmp_path / "book")  # if it were not refused, it would be written to
    kept = tmp_path / "kept"
    for options, words in (
        ([], "make gpu DEVICE=cpu"),
        (["--device", "cpu", "--folder", tmp_path / "book"], "folder: expected another than the book's"),
        (["--device", "cpu", "--corpus", tmp_path / "no.txt"], "no.txt"),
        (["--device", "tpu"], "'tpu' is not one of 'cuda', 'cpu'"),
        (["--device", "cpu", "--minutes", -1], "-1"),
    ):
        done = gpu("--kept", kept, *options)
        assert done.exit_code == 2 and words in done.output, f"{options}: {done.output}"
        assert not kept.exists(), f"{options}: something was written"
    with locked(kept):
        done = gpu("--device", "cpu", "--minutes", 0, "--kept", kept)
    assert done.exit_code == 1 and "in use by another run" in done.output


def test_the_exit_code_tells_a_failure(tmp_path, monkeypatch):
    from records import gpu as program

    steps = [step("fails", "raise ValueError('no')"), step("works")]
    monkeypatch.setattr(program, "plan_steps", lambda *_: steps)
    done = gpu("--device", "cpu", "--kept", tmp_path)
    assert done.exit_code == 1 and "fails: failed; works: finished" in done.output
    assert "goes on with what is missing" in done.output
    steps[0] = step("fails")
    done = gpu("--device", "cpu", "--kept", tmp_path)
    assert done.exit_code == 0 and "fails: finished; works: finished before" in done.output


def test_other_versions_begin_anew_with_a_word(tmp_path, monkeypatch):
    from records import gpu as program

    monkeypatch.setattr(program, "plan_steps", lambda *_: [step("works")])
    first = gpu("--device", "cpu", "--kept", tmp_path).output
    assert "works: finished" in first and "anew" not in first
    monkeypatch.setattr(program, "versions", lambda: dict(torch="of tomorrow"))
    other = gpu("--device", "cpu", "--kept", tmp_path).output
    assert "all begins anew" in other and "finished before" not in other
    noted = [json.loads(path.read_text()) for path in tmp_path.glob("*/circumstances.json")]
    assert {about["versions"]["torch"] == "of tomorrow" for about in noted} == {True, False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Twins of two seeds, of one layer."""
    folder = tmp_path_factory.mktemp("twins")
    (folder / "text.txt").write_text("".join(f"{i}: as it was said\n" for i in range(100)), "utf-8")
    given = dict(size="0.2M", tokenizer="bytes", corpus=folder / "text.txt", precision="bf16", device="cpu")
    given |= dict(steps=4, batch_size=2, length=16, eval_interval=2, held_out=64, progress=False)
    for seed in (0, 1):
        train_twins(out=folder / str(seed), seed=seed, **given)
    return folder


@pytest.mark.slow
def test_a_pair_is_recorded_like_the_books_own(trained, folder):
    from records.pairs import finished, write_pair

    runs = finished((trained / "0", trained / "1"))
    assert set(runs) == {(norm, seed) for norm in ("layer", "rms") for seed in (0, 1)}
    write_pair("10M", runs, folder)
    for part in PARTS:
        own = ng.recorded(f"pair-10M-{part}")
        first = (FOLDER / f"training-{part}.csv").read_text().partition("\n")[0]
        assert list(own.table.columns) == first.split(","), part
        assert not own.table.isna().any(axis=None), f"{part} has holes"
        assert set(own.table.norm) == {"layer", "rms"} and set(own.table.seed) == {0, 1}
        assert "text.txt" in own.provenance["corpus"] and own.provenance["precision"] == "bf16"
        assert own.provenance["training"].startswith("4 updates of 2 windows of 16 tokens")
    assert set(ng.recorded("pair-10M-angles").table.step) == {0, 2, 4}, "stages next to the percents"
    noted = json.loads((trained / "1/provenance.json").read_text())["had"]["loss"]["rms"]
    losses = ng.recorded("pair-10M-loss").table.set_index(["norm", "seed"]).loss
    assert losses["rms", 1] == pytest.approx(noted, rel=1e-5), "the loss of another run"


@pytest.mark.slow
def test_what_is_no_pair_is_refused(trained, folder):
    from records.pairs import write_pair

    with pytest.raises(ValueError, match="runs: expected at least one"):
        write_pair("x", {}, folder)
    with pytest.raises(ValueError, match="expected a finished training, there is no"):
        write_pair("x", {("layer", 0): folder / "layer"}, folder)
    about = trained / "1/provenance.json"
    before = about.read_text()
    about.write_text(before.replace('"decay": 0.1', '"decay": 0.2'))
    try:
        with pytest.raises(ValueError, match=r"differ in norm and seed, .*1/rms in \['size'\] too"):
            write_pair("x", {("layer", 0): trained / "0/layer", ("rms", 1): trained / "1/rms"}, folder)
    finally:
        about.write_text(before)
    assert not list(folder.glob("pair-*")), "something was written"


@pytest.mark.slow
def test_a_cpu_tries_everything_and_goes_on_where_it_was_killed(tmp_path):
    book = {path: path.stat().st_mtime_ns for path in FOLDER.iterdir()}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TQDM_DISABLE": "1"}
    command = [sys.executable, "-m", "records", "gpu", "--device", "cpu", "--kept", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as program:
        next(line for line in program.stdout if line.startswith("norms:"))
        time.sleep(1)
        program.terminate()
        program.stdout.read()
    assert program.returncode == 128 + signal.SIGTERM
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = "tests: finished before; norms: finished; survey: finished; converted: finished; twins-0.2M-0: finished"
    assert done.stdout.endswith(f"{outcome}\n"), done.stdout
    names = {path.stem for path in (tmp_path / "records").glob("*.csv")}
    speeds = {"speed-machine", "speed-norms", "speed-survey-cpu", "speed-converted-cpu"}
    assert names == speeds | {f"pair-0.2M-{part}" for part in PARTS}
    for name in names:
        about = json.loads((tmp_path / f"records/{name}.json").read_text("utf-8"))
        assert {"what", "device", "versions", "date", "command"} <= set(about), name
    assert {path: path.stat().st_mtime_ns for path in FOLDER.iterdir()} == book, "a record of the book was touched"
