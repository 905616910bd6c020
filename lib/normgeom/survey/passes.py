"""Runs of a model in which its norms are looked at, and which rows of a norm count: no padding, first ones apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from normgeom.models.sites import NormSite
from normgeom.models.watch import entries, forward, hooked

_STREAMS = ("", "decoder_")  # what the names of a batch's entries begin with; the second of a decoder beside an encoder


class Passes:
    """Runs of ``model`` in which its norms ``sites`` are looked at."""

    def __init__(self, model: nn.Module, sites: list[NormSite]):
        self.model, self.sites = model, sites

    def run(
        self, argument: str, batch: Tensor | Mapping, look: Callable[[NormSite, Tensor, Tensor, Tensor], None]
    ) -> int:
        """Run the model; at each norm call ``look(site, positions, x_in, x_out)``.

        ``positions``, ``(2, rows)`` float64, is 1 for rows that stand first in a text, and for those behind; padding is
        in neither.
        Returns how many tokens the batch has, padding left out.
        """
        self.check(argument, batch)
        given = entries(batch)
        ids = given.get("input_ids")
        if ids is not None and ids.numel() == 0:
            return 0
        masks = {stream: given.get(f"{stream}attention_mask") for stream in _STREAMS}
        masks = {stream: None if mask is None or mask.all() else mask.cpu().bool() for stream, mask in masks.items()}
        two_streams = getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)
        known: dict[tuple, Tensor] = {}
        counted = []

        def at(site: NormSite) -> Callable:
            stream = "decoder_" if two_streams and "decoder" in site.name.split(".") else ""

            def call(_, args: tuple, kwargs: dict, output: Tensor) -> None:
                x_in, x_out = next(iter((*args, *kwargs.values()))).detach(), output.detach()
                key = x_in.shape[:-1], site.token_axis, stream, device_of_sums(x_in.device)
                if key not in known:
                    positions = _positions(*key[:2], masks[stream])
                    if positions is None:
                        seen = f"{site.name}: an input of shape {tuple(x_in.shape)}"
                        raise ValueError(f"{argument}: {seen} does not show which of its rows are padding")
                    counted.append(int(positions.sum()))
                    known[key] = positions.double().to(key[-1], non_blocking=True)  # no wait for a GPU
                look(site, known[key], x_in, x_out)

            return call

        with hooked(after=[(site.module, at(site)) for site in self.sites]):
            forward(self.model, batch)
        if masks[""] is not None:
            return int(masks[""].sum())
        if ids is not None and not ids.is_floating_point():
            return ids.numel()
        return counted[0] if counted else 0

    def check(self, argument: str, batch: Tensor | Mapping) -> None:
        """Before a model gets them: on a GPU, a token id that it does not know ends the process."""
        given = entries(batch)
        config = getattr(self.model, "config", None)
        for stream in _STREAMS:
            ids, mask = (given.get(f"{stream}{name}") for name in ("input_ids", "attention_mask"))
            if mask is not None and len(shape := tuple(getattr(mask, "shape", ()))) != 2:
                raise ValueError(f"{argument}: expected {stream}attention_mask (batch, length), got shape {shape}")
            if ids is not None and not isinstance(ids, Tensor):
                raise TypeError(f"{argument}: expected token ids as a tensor, got {type(ids).__name__}")
            vocabulary = getattr(config, f"{stream}vocab_size", None) or getattr(config, "vocab_size", None)
            if ids is None or vocabulary is None or ids.numel() == 0:
                continue
            if ids.is_floating_point() or ids.dim() < 2:
                got = f"{ids.dtype} of shape {tuple(ids.shape)}"
                raise TypeError(f"{argument}: expected integer token ids (batch, length), got {got}")
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= vocabulary:
                expected = f"{argument}: expected token ids from 0 to {vocabulary - 1}, got {low} to {high}"
                raise ValueError(f"{expected}; is the tokenizer another model's?")


def _positions(lead: torch.Size, token_axis: int | None, mask: Tensor | None) -> Tensor | None:
    """Which rows of an input ``(*lead, d)`` stand first in a text and which behind; None where it does not show that.

    ``mask``, ``(batch, length)``, is true for tokens that are not padding; None where there is no padding.
    """
    batch_axis = 1 if token_axis == 0 else 0
    flat = token_axis is None  # then nothing shows where a text begins
    shape = (lead[0],) if flat else (lead[batch_axis], lead[token_axis])
    if mask is None:
        mask = torch.ones(shape, dtype=torch.bool)
    elif mask.numel() != lead[0] if flat else mask.shape != shape:
        return None
    first = torch.zeros_like(mask) if flat else mask & (mask.cumsum(-1) == 1)
    positions = torch.stack([first, mask & ~first])
    if token_axis == 0:
        positions = positions.transpose(1, 2)
    axes = (0,) if flat else (batch_axis, token_axis)
    view = [size if axis in axes else 1 for axis, size in enumerate(lead)]
    return positions.reshape(2, *view).expand(2, *lead).flatten(1)


def device_of_sums(device: torch.device) -> torch.device:
    """Where sums over tensors of a device are taken: there is no float64 on Apple's GPUs."""
    return torch.device("cpu") if device.type == "mps" else device
