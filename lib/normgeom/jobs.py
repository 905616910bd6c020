"""The folder of a long run: one process works in it, for one command, and a note records what was asked for."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch
from filelock import FileLock, Timeout

PROVENANCE, LOCK = "provenance.json", ".normgeom.lock"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path for writing a file or a folder, which becomes ``path`` when the block ends without an error."""
    part = path.with_name(path.name + ".part")
    remove(part)  # what a killed run left
    try:
        yield part
        os.replace(part, path)
    finally:
        remove(part)


def write_json(path: Path, content: dict) -> None:
    with atomic_path(path) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def digest(path: Path) -> str | None:
    """SHA-256 of a file, or of the names and digests of the files in a folder; None if ``path`` is neither."""
    if path.is_dir():
        inside = {str(p.relative_to(path)): digest(p) for p in sorted(path.rglob("*")) if p.is_file()}
        return hashlib.sha256(json.dumps(inside).encode()).hexdigest()
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder and keep other processes out of it; if the folder is empty at the end, it is removed.

    Raises:
        BlockingIOError: another process uses the folder.
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
def claimed(out: Path, asked: dict) -> Iterator[Callable[..., dict]]:
    """Hold ``out`` for one command, and note in ``provenance.json`` what was asked for: all that decides the results.

    Yields:
        a function that adds entries to the note and returns it.  The note is deleted if there are no results.

    Raises:
        ValueError: the folder holds something else.
        BlockingIOError: another process uses the folder.
    """
    path, note = out / PROVENANCE, {}

    def save(**entries: object) -> dict:
        note.update(entries)
        write_json(path, note)
        return note

    with locked(out):
        if path.exists():
            note |= _same(path, json.loads(json.dumps(asked)))
        elif found := _results(out):
            raise ValueError(f"out: {out} holds {found[0]} and no {PROVENANCE}; name a new or an empty folder")
        else:
            save(asked=asked, started=now())
        try:
            yield save
        finally:
            if not _results(out):
                path.unlink(missing_ok=True)


def _results(out: Path) -> list[str]:
    return sorted({path.name for path in out.iterdir()} - {PROVENANCE, LOCK})


def _same(path: Path, asked: dict) -> dict:
    """The note of a folder, after a check that it belongs to the same run."""
    try:
        note = json.loads(path.read_text("utf-8"))
        there = dict(note["asked"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"out: {path} is damaged; put a copy of it back, or name another folder") from error
    differing = [key for key in {**there, **asked} if there.get(key) != asked.get(key)]
    if differing:
        told = "; ".join(f"{key}: {there.get(key)} there, {asked.get(key)} asked for" for key in differing)
        raise ValueError(f"out: {path.parent} belongs to another run ({told}); name another folder")
    return note


def now() -> str:
    """Date and time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that decide a result."""
    packages = ("torch", "transformers", "tokenizers", "normgeom")
    return dict(python=platform.python_version()) | {name: metadata.version(name) for name in packages}


def usable_device(name: str | None) -> torch.device:
    """The device of that name, by default an accelerator if there is one; a ValueError if it cannot be used."""
    try:
        device = torch.device(name or torch.accelerator.current_accelerator(check_available=True) or "cpu")
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # an AssertionError where torch was built without CUDA
        raise ValueError(f"device: expected cpu, cuda, mps or the like, got {name!r} ({error})") from error
    return device
