"""A folder that holds the results of one piece of work: claimed before it, written whole, refused to any other work."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PROVENANCE = "provenance.json"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` when the block is left without an error."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """An error of the file system names the folder, and says what became of the work."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        what = f"{error.strerror} ({Path(error.filename).name})" if error.filename else error.strerror
        raise OSError(
            f"out: {out}: {what}; what was saved before is whole, and the same command goes on from it"
        ) from error


def claim(out: Path, asked: dict, results: Sequence[str], work: str) -> None:
    """Make ``out`` the folder of this work; one that holds the results of another is refused and left as it is.

    Args:
        asked: what decides the results; noted as ``asked`` in ``provenance.json``.
        results: patterns of the names of what the work leaves there.
        work: what a message calls it.

    Raises:
        ValueError: the folder holds such results, and they are of something else or it is not said of what.
    """
    path = out / PROVENANCE
    found = sorted(file.name for pattern in results for file in out.glob(pattern))
    there = _asked(path, work) if path.exists() else None
    here = _flat(json.loads(json.dumps(asked)))
    if found and there is None:
        raise ValueError(f"out: {out} holds {found[0]} without {PROVENANCE}; name another folder")
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)] if found else []
    if differing:
        parts = "; ".join(f"{key}: {there.get(key)!r} there, {here.get(key)!r} asked for" for key in differing)
        raise ValueError(f"out: {out} holds another {work} ({parts}); name another folder")
    if there != here:
        out.mkdir(parents=True, exist_ok=True)
        note(path, dict(asked=asked, started=now()))


def _asked(path: Path, work: str) -> dict:
    try:
        return _flat(json.loads(path.read_text("utf-8"))["asked"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"out: {path} is not the provenance of a {work}; name another folder") from error


def note(path: Path, provenance: dict) -> None:
    """Write ``provenance.json``."""
    with whole(path) as part:
        part.write_text(json.dumps(provenance, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def now() -> str:
    """Date and time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Of Python and of what decides a result."""
    packages = ("torch", "transformers", "tokenizers", "normgeom")
    return dict(python=platform.python_version()) | {name: metadata.version(name) for name in packages}


def _flat(nested: dict, prefix: str = "") -> dict:
    """A dict in a dict as one, its keys joined by dots."""
    flat = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
