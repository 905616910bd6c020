"""From a model's name to a folder with the RMSNorm model that computes the same function."""

from __future__ import annotations

import json
import os
from pathlib import Path

from normgeom.commands.loading import described, load_config, load_model, most_tokens
from normgeom.jobs import PROVENANCE, atomic_path, check_empty, write_provenance
from normgeom.surgery.converted import load_converted, save_converted
from normgeom.surgery.surgery import to_rms_norm
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import first_windows, load_tokenizer

TEXTS, LENGTH = 2, 64  # windows on which logits are compared, and their tokens


def convert_model(model: str, out: str | os.PathLike) -> dict:
    """Convert a pre-norm LayerNorm model to RMSNorm and write it, in the dtype of its weights, to a new folder.

    :func:`normgeom.to_rms_norm` first checks, in float64 on the beginning of the standard library's documentation, that
    the logits stay the same.  Returns the content of ``out/provenance.json``.  If this file already names this model,
    nothing is converted.
    """
    out = Path(out).resolve()
    config = load_config(model)
    named = described(model)
    noted = out / PROVENANCE
    if noted.is_file() and (note := json.loads(noted.read_text("utf-8"))).get("model") == named:
        load_converted(out)  # or the ValueError of a folder that is damaged or of another command
        return note
    check_empty(out)
    encoder = load_tokenizer(model, config)
    length = most_tokens(config, LENGTH)
    (ids,) = first_windows(load_corpus("stdlib"), encoder, TEXTS * length, length, TEXTS)
    network = to_rms_norm(load_model(model, head=True), ids)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as part:
        save_converted(network, part)
        encoder.save(part)
        return write_provenance(part, model=named, tokenizer=encoder.name, tokens=ids.numel())
