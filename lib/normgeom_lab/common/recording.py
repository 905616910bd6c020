"""Write recorded measurements: small tables and tensors, each with notes on its provenance."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from importlib import metadata
from pathlib import Path

import pandas as pd
import torch
from normgeom.jobs import atomic_path
from normgeom.records import FOLDER
from safetensors.torch import load_file, save
from torch import Tensor


def record(name: str, table: pd.DataFrame, what: str, folder: Path = FOLDER, **provenance: object) -> Path:
    """Write ``table`` as ``name.csv`` and its provenance as ``name.json``, both or neither.

    ``what`` says what was measured; ``provenance`` says what else a reader must know, such as model, corpus and seeds.
    Device, versions, date and command are added unless ``provenance`` contains them.
    """
    names = table.select_dtypes(["object", "string"])
    table = table.assign(**{column: names[column].map(_no_formula) for column in names})
    text = table.to_csv(index=False, float_format="%.7g", lineterminator="\n")
    return _write(folder / f"{name}.csv", text.encode(), what, provenance)


def record_tensors(
    name: str, tensors: dict[str, Tensor], what: str, folder: Path = FOLDER, **provenance: object
) -> Path:
    """Write ``tensors`` as ``name.safetensors``, and otherwise do the same as :func:`record`."""
    return _write(folder / f"{name}.safetensors", save(tensors), what, provenance)


def recorded_tensors(name: str, folder: Path = FOLDER) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors recorded under ``name``, as a dict by their names, and their provenance."""
    path = folder / f"{name}.safetensors"
    return load_file(path), json.loads(path.with_suffix(".json").read_text("utf-8"))


def _no_formula(entry: object) -> object:
    """Put an apostrophe before a text that a spreadsheet would otherwise evaluate as a formula."""
    return f"'{entry}" if isinstance(entry, str) and entry.startswith(("=", "+", "-", "@", "\t", "\r")) else entry


def _write(path: Path, content: bytes, what: str, provenance: dict[str, object]) -> Path:
    about = {"what": what} | {key: str(value) for key, value in provenance.items()}
    notes = about | {key: value for key, value in _circumstances().items() if key not in about}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as draft, atomic_path(path.with_suffix(".json")) as about:
        draft.write_bytes(content)
        about.write_text(json.dumps(notes, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def _circumstances() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("torch", "transformers", "numpy")}
    versions = {"python": platform.python_version(), **packages}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "device": f"{device}, threads: {torch.get_num_threads()}, {torch.backends.cpu.get_cpu_capability()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": datetime.date.today().isoformat(),
        "command": " ".join([Path(sys.argv[0]).parent.name, *sys.argv[1:2]]),
    }
