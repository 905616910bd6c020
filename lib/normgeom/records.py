"""Recorded measurements: small tables with a note of how each came to be."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import textwrap
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from safetensors.torch import load_file, save
from torch import Tensor

FOLDER = Path(__file__).parent / "data"


class Record(NamedTuple):
    """A table and its provenance: what was measured, on what, with which seed, versions and command."""

    table: pd.DataFrame
    provenance: dict[str, str]

    def __str__(self) -> str:
        lines = (f"{key}: {value}" for key, value in self.provenance.items())
        return "\n".join(textwrap.fill(line, 78, subsequent_indent="  ") for line in lines)


def recorded(name: str) -> Record:
    """The measurement that the book carries under ``name``.

    Raises:
        ValueError: there is none of that name; the message lists those there are.
    """
    path = _existing(name, ".csv")
    return Record(pd.read_csv(path), json.loads(path.with_suffix(".json").read_text("utf-8")))


def recorded_tensors(name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors that the book carries under ``name``, by their names, and their provenance.

    Raises:
        ValueError: there are none of that name; the message lists those there are.
    """
    path = _existing(name, ".safetensors")
    return load_file(path), json.loads(path.with_suffix(".json").read_text("utf-8"))


def _existing(name: str, suffix: str) -> Path:
    path = FOLDER / f"{name}{suffix}"
    if not path.is_file():
        raise ValueError(f"name: expected one of {sorted(p.stem for p in FOLDER.glob(f'*{suffix}'))}, got {name!r}")
    return path


def record(name: str, table: pd.DataFrame, what: str, folder: Path = FOLDER, **provenance: object) -> Path:
    """Write ``table`` as ``name.csv`` and its provenance as ``name.json`` beside it, whole or not at all.

    Args:
        what: a sentence that says what was measured.
        provenance: what else a reader must know: model, corpus, seeds, sizes.

    Date, command, versions and device are noted without being asked for.

    Raises:
        OSError: the folder cannot be written; what was there is as it was.
    """
    text = table.to_csv(index=False, float_format="%.7g", lineterminator="\n")
    return _write(folder / f"{name}.csv", text.encode(), what, provenance)


def record_tensors(
    name: str, tensors: dict[str, Tensor], what: str, folder: Path = FOLDER, **provenance: object
) -> Path:
    """Write ``tensors`` as ``name.safetensors``; else as :func:`record`."""
    return _write(folder / f"{name}.safetensors", save(tensors), what, provenance)


def _write(path: Path, content: bytes, what: str, provenance: dict[str, object]) -> Path:
    notes = {"what": what, **{key: str(value) for key, value in provenance.items()}, **_circumstances()}
    about = json.dumps(notes, indent=1, ensure_ascii=False) + "\n"
    files = {path: content, path.with_suffix(".json"): about.encode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    drafts = {target: target.with_name(f".{target.name}.part") for target in files}
    try:
        for target, draft in drafts.items():
            draft.write_bytes(files[target])
        for target, draft in drafts.items():
            os.replace(draft, target)
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    return path


def _circumstances() -> dict[str, str]:
    versions = {"python": platform.python_version(), **_versions(("torch", "transformers", "numpy"))}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "device": f"{device}, {torch.get_num_threads()} thread(s), {torch.backends.cpu.get_cpu_capability()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": datetime.date.today().isoformat(),
        "command": " ".join([Path(sys.argv[0]).parent.name, *sys.argv[1:2]]),
    }


def _versions(packages: Iterable[str]) -> dict[str, str]:
    return {name: metadata.version(name) for name in packages}
