"""Saved models whose weights are all there, and no others."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

# What older versions saved with a model and newer ones compute: causal masks, angles and numbers of positions.
_COMPUTED = re.compile(r"(attn|attention)\.(bias|masked_bias|causal_mask)$|\.inv_freq$|position_ids$")


def load_pretrained(kind: type, name_or_path: str | os.PathLike, **options) -> tuple[PreTrainedModel, str]:
    """``kind.from_pretrained``, in evaluation mode, and what is wrong with the weights: an empty text if nothing is.

    A model without the head that it was saved with is whole, and so is one with a pooler that it was saved without:
    neither changes what the rest computes, nor do the masks that old models were saved with.  What is not there or
    does not fit is drawn.

    Args:
        kind: ``AutoModel``, ``AutoModelForCausalLM`` or a model's class.
        options: as there.
    """
    with _without_report():
        model, told = kind.from_pretrained(
            name_or_path, output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False, **options
        )
    return model.eval(), _amiss(model, told)


def _amiss(model: PreTrainedModel, told: dict) -> str:
    """Which weights are not those of the model, in words."""
    inner = model.base_model
    parts = {model.base_model_prefix, *(name for part in (model, inner) for name, _ in part.named_children())}
    pooled = "add_pooling_layer" in inspect.signature(type(inner)).parameters  # after the last norm, and optional
    missing = [key for key in told["missing_keys"] if not (pooled and "pooler" in key.split("."))]
    kinds = {
        "missing": sorted(missing),
        "unexpected": sorted(
            key for key in told["unexpected_keys"] if key.partition(".")[0] in parts and not _COMPUTED.search(key)
        ),
        "of another shape": sorted(
            f"{key} {tuple(there)}, not {tuple(here)}" for key, there, here in told["mismatched_keys"]
        ),
    }
    said = [f"{what}: {_some(names)}" for what, names in kinds.items() if names]
    return "; ".join([*said, *filter(None, [not_finite(model)])])


def not_finite(model: nn.Module) -> str:
    """Which parameters hold NaN or Inf, in words; an empty text if none does."""
    found = [name for name, p in model.named_parameters() if not _is_finite(p.detach())]
    return f"with NaN or Inf: {_some(found)}" if found else ""


def _is_finite(p: Tensor) -> bool:
    """Of a weight that is loaded when it is needed, or in fewer than 16 bits, nothing is asked."""
    if p.is_meta or not p.is_floating_point() or p.dtype.itemsize < 2 or not p.numel():
        return True
    return bool(torch.isfinite(torch.stack(torch.aminmax(p))).all())


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
