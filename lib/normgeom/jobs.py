"""The folder of a long run: one process works in it, for one command and its arguments; no file is half written."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch
from filelock import FileLock, Timeout

PROVENANCE, LOCK = "provenance.json", ".normgeom.lock"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` when the block ends without an error."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, content: dict) -> None:
    with atomic_path(path) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def check_out_dir(out: str | os.PathLike) -> Path:
    """The path of a new or empty folder, links followed; a ValueError if anything else is there."""
    path = Path(out).resolve()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"out: expected a new or empty folder, got {path}; name another")
    return path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder and keep other processes out of it; a folder that is empty in the end is removed.

    Raises:
        BlockingIOError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(f"out: {folder} is in use by another run; wait for its end or name another") from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: the next process makes a new one
        lock.release()
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def claimed(out: Path, work: str, asked: dict) -> Iterator[None]:
    """Hold ``out`` for one command with its arguments, noted in ``provenance.json``; without results the note goes too.

    Args:
        work: what the command makes, such as ``"survey"``.
        asked: the arguments, and all else that decides the results.

    Raises:
        ValueError: the folder holds something else.
        BlockingIOError: another process works there.
    """
    asked, note = json.loads(json.dumps(asked)), out / PROVENANCE
    with locked(out):
        if note.exists():
            _check_same(note, work, asked)
        elif found := _results(out):
            raise ValueError(f"out: {out} holds {found[0]} and no {PROVENANCE}; name a new or an empty folder")
        else:
            write_json(note, dict(work=work, asked=asked, started=now()))
        try:
            yield
        finally:
            if not _results(out):
                note.unlink(missing_ok=True)


def _results(out: Path) -> list[str]:
    return sorted({path.name for path in out.iterdir()} - {PROVENANCE, LOCK})


def _check_same(note: Path, work: str, asked: dict) -> None:
    try:
        noted = json.loads(note.read_text("utf-8"))
        there = dict(noted["asked"], work=noted["work"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"out: {note} is not the provenance of a {work}; name another folder") from error
    here = dict(asked, work=work)
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if differing:
        told = "; ".join(f"{key}: {there.get(key)} there, {here.get(key)} asked for" for key in differing)
        raise ValueError(f"out: {note.parent} belongs to another run ({told}); name another folder")


def now() -> str:
    """Date and time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide a result."""
    packages = ("torch", "transformers", "tokenizers", "normgeom")
    return dict(python=platform.python_version()) | {name: metadata.version(name) for name in packages}


def usable_device(name: str | None) -> torch.device:
    """The device of that name, by default an accelerator where there is one; a ValueError if it cannot be used."""
    try:
        device = torch.device(name or torch.accelerator.current_accelerator(check_available=True) or "cpu")
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # an AssertionError where torch was built without CUDA
        raise ValueError(f"device: expected cpu, cuda, mps or the like, got {name!r} ({error})") from error
    return device
