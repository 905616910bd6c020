"""Files and folders of results: written as a whole, one process at a time, with a note on what they are."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch
from filelock import FileLock, Timeout

LOCK, PROVENANCE = ".normgeom.lock", "provenance.json"


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
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and digests of the files in a folder."""
    if path.is_dir():
        inside = {str(p.relative_to(path)): digest(p) for p in sorted(path.rglob("*")) if p.is_file()}
        return hashlib.sha256(json.dumps(inside).encode()).hexdigest()
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


def check_empty(folder: Path, *but: str) -> None:
    """Raise a ValueError if the folder exists and holds anything other than files with these names."""
    if folder.exists() and (found := sorted({path.name for path in folder.iterdir()} - {LOCK, *but})):
        raise ValueError(f"out: expected a new or empty folder, {folder} holds {found[0]}; name another")


def write_provenance(folder: Path, **about: object) -> dict:
    """Note in ``provenance.json`` what the files in a folder are, when they were made and with which versions."""
    packages = ("torch", "transformers", "tokenizers", "normgeom")
    versions = dict(python=platform.python_version()) | {name: metadata.version(name) for name in packages}
    note = about | dict(versions=versions, finished=datetime.now(UTC).isoformat(timespec="seconds"))
    write_json(folder / PROVENANCE, note)
    return note


def usable_device(name: str | None) -> torch.device:
    """The device of that name, by default an accelerator if there is one; a ValueError if it cannot be used."""
    try:
        device = torch.device(name or torch.accelerator.current_accelerator(check_available=True) or "cpu")
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # an AssertionError where torch was built without CUDA
        raise ValueError(f"device: expected cpu, cuda, mps or the like, got {name!r} ({error})") from error
    return device
