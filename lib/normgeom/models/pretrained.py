"""Saved models whose weights are all there, and no others."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel


def load_pretrained(kind: type, name_or_path: str | os.PathLike, **options) -> tuple[PreTrainedModel, str]:
    """``kind.from_pretrained``, in evaluation mode, and what is wrong with the weights: an empty text if nothing is.

    A model without the head that it was saved with is whole, and so is one with a pooler that it was saved without:
    neither changes what the rest computes.  What is not there or does not fit is drawn.

    Args:
        kind: ``AutoModel``, ``AutoModelForCausalLM`` or a model's class.
        options: as there.
    """
    with _without_report():
        model, told = kind.from_pretrained(
            name_or_path, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    return model.eval(), _amiss(model, told)


def _amiss(model: PreTrainedModel, told: dict) -> str:
    """Which weights are not those of the model, in words."""
    inner = model.base_model
    parts = {model.base_model_prefix, *(name for part in (model, inner) for name, _ in part.named_children())}
    missing = set(told["missing_keys"])
    if missing:
        missing -= _beside(model)
    kinds = {
        "missing": sorted(missing),
        "unexpected": sorted(key for key in told["unexpected_keys"] if key.partition(".")[0] in parts),
        "of another shape": sorted(
            f"{key} {tuple(there)}, not {tuple(here)}" for key, there, here in told["mismatched_keys"]
        ),
    }
    return "; ".join(f"{what}: {_some(names)}" for what, names in kinds.items() if names)


def _beside(model: PreTrainedModel) -> set[str]:
    """Weights of a model that the architecture it was saved as does not have."""
    saved_as = _architecture(model.config)
    if saved_as is None:
        return set()
    with torch.device("meta"):
        had = {name for name, _ in saved_as(model.config).base_model.named_parameters()}
    return {name for name, _ in model.base_model.named_parameters()} - had


def _architecture(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    return kind if getattr(kind, "config_class", None) is type(config) else None


def _some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@contextmanager
def _without_report() -> Iterator[None]:
    """Without the table of weights that transformers prints."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_no_report)
    try:
        yield
    finally:
        logger.removeFilter(_no_report)


def _no_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()
