"""Runs of a model in which its norms are looked at, and which rows of a norm count: no padding, first ones apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from normgeom.models.calls import entries, forward
from normgeom.models.sites import NormSite
from normgeom.models.watch import watch
from normgeom.survey.devices import of_sums, sent
from normgeom.survey.tally import rows

Look = Callable[[NormSite, tuple[Tensor, Tensor], Tensor, Tensor], None]
STREAMS = ("", "decoder_")  # what the names of a batch's entries begin with; the second of a decoder beside an encoder


class Passes:
    """Runs of ``model`` in which its norms ``sites`` are looked at."""

    def __init__(self, model: nn.Module, sites: list[NormSite]):
        self.model, self.sites = model, sites

    def run(self, argument: str, batch: Tensor | Mapping, look: Look) -> Tensor | None:
        """Run the model; at each norm call ``look(site, rows first and rest, x_in, x_out)``.

        Returns which tokens of the batch are not padding, where that is known.
        """
        self.check(argument, batch)
        given = entries(batch)
        masks = {stream: _mask(given, stream) for stream in STREAMS}
        ids = given.get("input_ids")
        if ids is not None and ids.numel() == 0:
            return masks[""]
        two_streams = getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)
        known: dict[tuple, tuple[Tensor, Tensor]] = {}

        def call(site: NormSite, x_in: Tensor, x_out: Tensor) -> None:
            stream = "decoder_" * (two_streams and "decoder" in site.name.split("."))
            key = (x_in.shape[:-1], site.token_axis, stream, of_sums(x_in.device))
            if key not in known:
                try:
                    known[key] = tuple(sent(part, key[-1]) for part in rows(*key[:2], masks[stream]))
                except ValueError as error:
                    raise ValueError(f"{argument}: {site.name}: {error}") from None
            look(site, known[key], x_in, x_out)

        with watch(self.model, self.sites, call):
            forward(self.model, batch)
        return masks[""]

    def check(self, argument: str, batch: Tensor | Mapping) -> None:
        """Before a model gets them: on a GPU, a token id that it does not know ends the process."""
        given = entries(batch)
        for name, value in given.items():
            if isinstance(value, Mapping):
                raise ValueError(f"{argument}: expected tensors, got a mapping as {name}; survey the part it is for")
            of_other = name.endswith("mask") and ("pixel" in name or "padding" in name) and isinstance(value, Tensor)
            if of_other and value.any() and not value.all():
                raise ValueError(f"{argument}: {name} marks padding; only what an attention_mask marks is left out")
        config = getattr(self.model, "config", None)
        for stream in STREAMS:
            ids, mask = (given.get(f"{stream}{name}") for name in ("input_ids", "attention_mask"))
            if mask is not None and len(shape := tuple(getattr(mask, "shape", ()))) != 2:
                raise ValueError(f"{argument}: expected {stream}attention_mask (batch, length), got shape {shape}")
            if ids is not None and not isinstance(ids, Tensor):
                raise TypeError(f"{argument}: expected token ids as a tensor, got {type(ids).__name__}")
            vocabulary = getattr(config, f"{stream}vocab_size", None) or getattr(config, "vocab_size", None)
            if ids is None or vocabulary is None or ids.numel() == 0:
                continue
            if ids.is_floating_point():
                raise TypeError(f"{argument}: expected integer token ids, got {ids.dtype}")
            if ids.dim() < 2:
                raise ValueError(f"{argument}: expected token ids (batch, length), got shape {tuple(ids.shape)}")
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= vocabulary:
                raise ValueError(
                    f"{argument}: expected token ids from 0 to {vocabulary - 1}, got {low} to {high}: the model's "
                    f"vocabulary is of {vocabulary}; is the tokenizer another model's?"
                )


def _mask(batch: Mapping, stream: str) -> Tensor | None:
    """Which tokens are not padding, ``(batch, length)`` on the CPU; None where a batch does not show its tokens."""
    ids, mask = (batch.get(f"{stream}{name}") for name in ("input_ids", "attention_mask"))
    if mask is not None:
        return mask.detach().cpu().bool()
    counts = ids is not None and ids.dim() == 2 and not ids.is_floating_point()
    return torch.ones(ids.shape, dtype=torch.bool) if counts else None
