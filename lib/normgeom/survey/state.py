"""A survey's state as one small file, written whole or not at all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from normgeom.survey.tally import Tally, on_cpu

SPARING = 100  # times as long as it took to save passes before the next time
_FORMAT = 2
_FIELDS = [field.name for field in fields(Tally)]


def write(path: str | os.PathLike, about: dict, tallies: list[Tally]) -> None:
    """``about``, which JSON must be able to hold, and the tallies to ``path``.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    tallies = on_cpu(tallies)
    shapes = [[list(getattr(tally, name).shape) for name in _FIELDS] for tally in tallies]
    header = json.dumps(dict(about, format=_FORMAT, shapes=shapes))
    arrays = {name: torch.cat([getattr(tally, name).flatten() for tally in tallies]) for name in _FIELDS}
    try:
        with open(part, "wb") as file:
            np.savez_compressed(file, about=np.array(header), **{name: a.numpy() for name, a in arrays.items()})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def kept(path: str | os.PathLike | None, save: Callable[[str | os.PathLike], None]) -> Iterator[Callable[[], None]]:
    """What to call after each batch: it saves, for a hundredth of the time at most; in the end what is left is saved.

    Where saving failed, the end does not try it again.  A ``path`` of None saves nothing.
    """
    due, behind = -float("inf"), False

    def write() -> None:
        nonlocal due, behind
        behind, start = False, time.monotonic()
        save(path)
        end = time.monotonic()
        due = end + SPARING * (end - start)

    def measured() -> None:
        nonlocal behind
        behind = path is not None
        if behind and time.monotonic() >= due:
            write()

    try:
        yield measured
    finally:
        if behind:
            write()


def read(path: str | os.PathLike) -> tuple[dict, list[Tally]]:
    """What :func:`write` wrote.

    Raises:
        ValueError: the file is not a survey's state.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as stream:
        try:
            return _parsed(np.load(stream))
        except Exception as error:  # a damaged file fails in numpy, zlib, JSON or Python's tokenizer, each its way
            raise ValueError(f"path: {os.fspath(path)} is not the state of a survey") from error


def _parsed(file: Mapping[str, np.ndarray]) -> tuple[dict, list[Tally]]:
    about = json.loads(str(file["about"]))
    if about.pop("format") != _FORMAT:
        raise ValueError("another format")
    shapes = about.pop("shapes")
    cut = [
        torch.from_numpy(file[name]).split([int(np.prod(shape[k])) for shape in shapes])
        for k, name in enumerate(_FIELDS)
    ]
    tallies = [
        Tally(*(piece.view(shape) for piece, shape in zip(pieces, sizes, strict=True)))
        for pieces, sizes in zip(zip(*cut, strict=True), shapes, strict=True)
    ]
    return about, tallies
