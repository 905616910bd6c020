"""A survey from the names of a model and a corpus: it writes a folder with a table and its provenance."""

from __future__ import annotations

from pathlib import Path

from normgeom.commands.loading import described, load_config, load_model, most_tokens
from normgeom.jobs import PROVENANCE, atomic_path, check_empty, locked, usable_device, write_provenance
from normgeom.survey import directions
from normgeom.survey.survey import Survey
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import first_windows, load_tokenizer

TABLE, STATE = "table.parquet", "state.safetensors"


def survey_model(model, out, *, tokens, corpus, length, batch_size, nulls, seed, device, dtype, quiet) -> dict:
    """Survey a transformers model and write the results to a folder; the arguments are the options in ``cli.py``.

    ``table.parquet`` is the table of :class:`normgeom.Survey`.  ``provenance.json``, also returned, names the model,
    the text, the settings and the versions.  ``state.safetensors`` is saved during the run, so that the same call
    resumes an earlier one.  A state of another model, text or seed is refused.
    """
    out = Path(out)
    check_empty(out, TABLE, STATE, PROVENANCE)
    config = load_config(model)
    if config.is_encoder_decoder:
        raise ValueError(f"model: expected one that reads one text, got a {type(config).__name__}")
    named = described(model)
    length = most_tokens(config, length)
    encoder = load_tokenizer(model, config)
    text = load_corpus(corpus)
    device = usable_device(device)
    batches = first_windows(text, encoder, tokens, length, batch_size)
    with locked(out):
        network = load_model(model, dtype).to(device)
        survey = Survey(network, [*directions.DEFAULT, *directions.nulls(nulls)], seed)
        survey.run(batches, progress=not quiet, checkpoint=out / STATE)
        with atomic_path(out / TABLE) as part:
            survey.table().to_parquet(part, index=False)
        return write_provenance(
            out,
            model=named,
            corpus=text.provenance,
            tokenizer=encoder.name,
            windows=dict(length=length, batch_size=batch_size),
            **{name: getattr(survey, name) for name in ("seed", "tokens", "batches", "digest", "fingerprint")},
            network=type(network).__name__,
            dtype=str(network.dtype).removeprefix("torch."),
            device=device.type,
        )
