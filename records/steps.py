"""Command lines one after the other until a deadline: what is finished is not run again, what fails stops no other."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import BinaryIO

import click
from normgeom.jobs import now, write_json

ROOT = Path(__file__).parents[1]
ENDING = (signal.SIGTERM, signal.SIGHUP)
GRACE = 15  # seconds between asking a program to end and ending it
LEAST = 60  # seconds that are worth beginning what resumes: time to load, and to reach a checkpoint
# What the output of a failed step says, and what can be done.
ADVICE = {
    r"out of memory": "the memory is full: free it (nvidia-smi shows who holds a GPU's) and run the same again, or run "
    "the command above with less: {smaller}",
    r"C compiler|CppCompile|InvalidCxxCompiler|Python\.h": "torch.compile found no working compiler: install a C and "
    "C++ compiler and Python's headers, or run the command above with less: {smaller}",
    r"No space left|Disk quota": "the disk is full: make room and run the same again",
    "": "the same command tries it again",
}


@dataclass(frozen=True)
class Step:
    """A program to run.

    Attributes:
        name: of its log and of the mark that it is finished.
        what: it does, in words.
        seconds: that it may take.
        command: its command line.
        then: the command line that writes its result; it is quick, needs no device, and runs after the deadline too.
        resumes: whether it goes on where it was stopped; else it is not begun unless it fits.
        smaller: options by which it would take less.
    """

    name: str
    what: str
    seconds: float
    command: tuple[str, ...]
    then: tuple[str, ...] = ()
    resumes: bool = False
    smaller: str = "none that would"

    @property
    def least(self) -> float:
        """Seconds without which it is not begun."""
        return min(LEAST, self.seconds) if self.resumes else self.seconds


def run_all(steps: Sequence[Step], kept: Path, seconds: float) -> dict[str, str]:
    """Run steps in their order and say before each what it does and how long it may take.

    Args:
        kept: a folder for logs and marks; a step that is marked there with the same command lines is not run again.
        seconds: until nothing is begun any more, and what runs is ended.

    Returns:
        what became of each: ``"finished"``, ``"finished before"``, ``"skipped"``, ``"stopped"`` or ``"failed"``.
    """
    kept.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    with _ended_by_signals():
        return {step.name: _run(step, kept, end) for step in steps}


def _run(step: Step, kept: Path, end: float) -> str:
    mark, log, left = kept / f"{step.name}.json", kept / f"{step.name}.log", end - time.monotonic()
    asked = [list(step.command), list(step.then)]
    if mark.exists() and (noted := json.loads(mark.read_text("utf-8")))["asked"] == asked:
        click.echo(f"{step.name}: finished before, {noted['finished']}; its output: {log}")
        return "finished before"
    if left <= 0 or left < step.least:
        click.echo(f"{step.name}: skipped; {step.what} may take {_span(step.least)}, {_span(max(0, left))} are left")
        return "skipped"
    click.echo(f"{step.name}: {step.what}; it may take {_span(step.seconds)}, {_span(left)} are left")
    log.unlink(missing_ok=True)
    code, said = call(step.command, log, left)
    if code is None:
        became = "the same command goes on from its last checkpoint" if step.resumes else "the same command begins anew"
        click.echo(f"{step.name}: stopped, the time is over; {became}")
        return "stopped"
    if code == 0 and step.then:
        code, said = call(step.then, log, None)
    if code:
        click.echo(f"{step.name}: failed with exit code {code} ({said}); {_advice(log, step)}; its output: {log}")
        return "failed"
    write_json(mark, dict(asked=asked, said=said, finished=now()))
    return "finished"


def call(command: Sequence[str], log: Path, seconds: float | None) -> tuple[int | None, str]:
    """Run a command line; what it says goes to standard output and to the end of a file.

    Args:
        seconds: after which it is ended, with all that it started; None for no such limit.

    Returns:
        its exit code, None if it was ended; and the last line that it said.
    """
    click.echo(f"$ {shlex.join(command)}")
    with log.open("ab") as file:
        # a group of its own, so that what it starts can be ended with it
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        copying = Thread(target=_copy, args=(program.stdout, file))
        try:  # a signal may come as soon as the program has said something
            copying.start()
            code = program.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(program)
            if copying.ident is not None:
                copying.join()
    lines = re.split(r"[\r\n]+", log.read_text("utf-8", errors="replace").strip())
    return code, lines[-1].strip()


def _copy(said: BinaryIO, file: BinaryIO) -> None:
    with said:
        for chunk in iter(lambda: said.read1(), b""):
            file.write(chunk)
            click.echo(chunk, nl=False)


def _end(program: subprocess.Popen) -> None:
    if program.poll() is None:
        os.killpg(program.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            program.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A request to end, or a terminal that is closed, ends what runs as well, unless the caller has it ignored."""
    signals = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: sys.exit(128 + got)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _advice(log: Path, step: Step) -> str:
    said = log.read_text("utf-8", errors="replace")
    return next(words for sign, words in ADVICE.items() if re.search(sign, said)).format(smaller=step.smaller)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
