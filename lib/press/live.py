"""The files of the interactive parts: the scripts of the book, and saved networks as a script; no server is needed."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
from safetensors.numpy import load_file

from press.book import CHAPTERS, Book

FOLDER, WEIGHTS = "_live", "twins.js"
NETWORKS = "figures/data/twins.safetensors"


def live(book: Book) -> dict[str, bytes]:
    """Return the files that pages load for their interactive parts, as path in the stage → content."""
    served = (path for path in book.root.glob(f"{CHAPTERS}/{FOLDER}/*") if path.suffix in (".css", ".js"))
    files = {f"{FOLDER}/{path.name}": path.read_bytes() for path in served}
    if (book.root / NETWORKS).is_file():
        files[f"{FOLDER}/{WEIGHTS}"] = networks(book).encode()
    return files


def networks(book: Book) -> str:
    """Return a script that sets ``normgeom.saved``: sizes, tensor shapes, float16 in base64 and CRC-32 per network."""
    path = book.root / NETWORKS
    tensors, about = load_file(path), json.loads(path.with_suffix(".json").read_text("utf-8"))
    made = {}
    for kind in dict.fromkeys(name.partition(".")[0] for name in tensors):
        own = {name.partition(".")[2]: t for name, t in sorted(tensors.items()) if name.startswith(f"{kind}.")}
        (vocabulary, width), length = own["wte.weight"].shape, len(own["wpe.weight"])
        sizes = dict(kind=kind, width=width, vocabulary=vocabulary, length=length)
        sizes |= dict(layers=int(about["layers"]), heads=int(about["heads"]), eps=float(about["eps"]))
        numbers = np.concatenate([t.ravel() for t in own.values()]).astype("<f2").tobytes()
        shapes = [[name, list(t.shape)] for name, t in own.items()]
        made[kind] = dict(
            sizes=sizes, tensors=shapes, data=base64.b64encode(numbers).decode(), crc32=zlib.crc32(numbers)
        )
    return f"normgeom.saved = {json.dumps(made)};\n"
