"""A folder of results belongs to one run: held while it works, marked with what it is, refused to all others."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from filelock import FileLock, Timeout

from normgeom.jobs.paths import check_text

PROVENANCE, LOCK = "provenance.json", ".normgeom.lock"


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
    """Make an error of the file system name the folder."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        what = f"{error.strerror} ({Path(error.filename).name})" if error.filename else error.strerror
        raise OSError(f"out: {out}: {what}; what was saved before is whole") from error


def place(out: str | os.PathLike) -> Path:
    """``out`` as a path, if a folder is there or can be made there; nothing is made yet.

    Raises:
        ValueError: it is the empty text, or not UTF-8.
        NotADirectoryError: it is, or lies below, a file or a link to nothing.
        PermissionError: nothing may be written there.
        OSError: its name cannot be.
    """
    if not os.fspath(out):
        raise ValueError("out: expected the name of a folder, got ''")
    check_text("out", out)
    out = Path(out)
    with writing(out), suppress(FileNotFoundError, NotADirectoryError):
        out.lstat()  # a name that is too long, a link to itself
    near = next(path for path in (out, *out.absolute().parents) if os.path.lexists(path))
    if not near.is_dir():
        raise NotADirectoryError(f"out: expected a folder or a new name, {near} is no folder; name another")
    if not os.access(near, os.W_OK | os.X_OK):
        raise PermissionError(
            f"out: {out} cannot be made or written to: {near} may not be changed; name another folder"
        )
    return out


@contextmanager
def held(out: Path, lock: Path) -> Iterator[None]:
    """Keep other processes from ``out`` until the block is left; the system frees it when this one is killed.

    Args:
        lock: a file in ``out`` or beside it.  Its folder is made, and removed if it was made here and is empty then.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the lock cannot be written.
    """
    made = [path for path in (lock.parent, *lock.absolute().parents) if not path.exists()]
    holder = FileLock(lock)
    try:
        with writing(out):
            lock.parent.mkdir(parents=True, exist_ok=True)
            try:
                holder.acquire(timeout=0)
            except Timeout:
                raise BlockingIOError(
                    f"out: {out} is in use by another run; wait until it has ended, or name another folder"
                ) from None
        yield
    finally:
        if holder.is_locked:
            with suppress(OSError):
                lock.unlink()  # while it is held: who comes now makes a new one
        holder.release()
        for path in made:
            with suppress(OSError):
                path.rmdir()


@contextmanager
def claiming(out: Path, work: str, results: Sequence[str]) -> Iterator[Callable[[dict], None]]:
    """Hold ``out`` for one run of one command, which says by calling what it is given what it is asked for.

    That call notes ``asked``, what decides the results, in ``provenance.json``; a folder of another command or of the
    same with other arguments is refused and left as it is.  A run that leaves no results leaves no mark either.

    Args:
        work: what the command makes, such as "survey"; noted too.
        results: patterns of the names of what it leaves there.

    Raises:
        ValueError: in the call: the folder holds something else, or it is not said what it holds.
        OSError: as :func:`held`.
    """
    marked = False

    def claim(asked: dict) -> None:
        nonlocal marked
        if not _is_of(out, work, asked, results):
            note(out / PROVENANCE, dict(work=work, asked=asked, started=now()))
            marked = True

    with held(out, out / LOCK):
        try:
            yield claim
        finally:
            if marked and not _found(out, results):
                (out / PROVENANCE).unlink(missing_ok=True)


def _is_of(out: Path, work: str, asked: dict, results: Sequence[str]) -> bool:
    """Whether the folder is marked as one of this run; a ValueError if it is another's."""
    path = out / PROVENANCE
    if not path.exists():
        if found := _found(out, results):
            raise ValueError(f"out: {out} holds {found[0]} without {PROVENANCE}; name another folder")
        return False
    try:
        noted = json.loads(path.read_text("utf-8"))
        its_work, there = noted["work"], _flat(noted["asked"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"out: {path} is not the provenance of a {work}; name another folder") from error
    if its_work != work:
        raise ValueError(f"out: {out} holds a {its_work}, expected a {work} or nothing; name another folder")
    here = _flat(json.loads(json.dumps(asked)))
    if differing := [key for key in {**there, **here} if there.get(key) != here.get(key)]:
        parts = "; ".join(f"{key}: {there.get(key)!r:.80} there, {here.get(key)!r:.80} asked for" for key in differing)
        raise ValueError(f"out: {out} holds another {work} ({parts}); name another folder")
    return True


def _found(out: Path, results: Sequence[str]) -> list[str]:
    return sorted(file.name for pattern in results for file in out.glob(pattern))


def damaged(path: Path, error: Exception | str, then: str = "run the same command") -> OSError:
    """The error of a file that this package wrote and that is no longer what it was; it says how to go on."""
    what = error if isinstance(error, str) else " ".join(f"{type(error).__name__}: {error}".split())
    return OSError(f"out: {path} is damaged ({what}); delete it and {then}")


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
