"""Runs of a model in which its norms are looked at, and which rows of a norm count: no padding, first ones apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from normgeom.models.calls import entries, forward
from normgeom.models.sites import NormSite
from normgeom.models.watch import watch
from normgeom.survey.devices import of_sums, sent
from normgeom.survey.padding import STREAMS, given_masks, listening, mask_of, token_ids, told_of_padding
from normgeom.survey.tally import rows

Look = Callable[[NormSite, tuple[Tensor, Tensor], Tensor, Tensor], None]


class Passes:
    """Runs of ``model`` in which its norms ``sites`` are looked at."""

    def __init__(self, model: nn.Module, sites: list[NormSite]):
        self.model, self.sites = model, sites
        self._told = told_of_padding(model)

    def run(self, argument: str, batch: Tensor | Mapping, look: Look) -> Tensor | None:
        """Run the model; at each norm call ``look(site, rows first and rest, x_in, x_out)``.

        Returns which tokens of the batch are not padding, where that is known.
        """
        self.check(argument, batch)
        masks = {stream: mask_of(batch, stream) for stream in STREAMS}
        ids = token_ids(batch)
        if ids is not None and ids.numel() == 0:
            return masks[""]
        two_streams = getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)
        known: dict[tuple, tuple[Tensor, Tensor]] = {}

        def source(site: NormSite) -> str:
            """Whose padding a norm sees."""
            within = [name for name in self._told if name in masks and site.name.startswith(f"{name}.")]
            return within[0] if within else "decoder_" * (two_streams and "decoder" in site.name.split("."))

        def call(site: NormSite, x_in: Tensor, x_out: Tensor) -> None:
            key = (x_in.shape[:-1], site.token_axis, source(site), of_sums(x_in.device))
            if key not in known:
                try:
                    known[key] = tuple(sent(part, key[-1]) for part in rows(*key[:2], masks[key[2]]))
                except ValueError as error:
                    raise ValueError(f"{argument}: {site.name}: {error}") from None
            look(site, known[key], x_in, x_out)

        told = {} if given_masks(batch) else self._told
        with watch(self.model, self.sites, call), listening(told, masks.setdefault):
            forward(self.model, batch)
        return masks[next((name for name in told if name in masks), "")]

    def check(self, argument: str, batch: Tensor | Mapping) -> None:
        """Before a model gets them: on a GPU, a token id that it does not know ends the process."""
        config = getattr(self.model, "config", None)
        for name, mask in given_masks(batch).items():
            if len(shape := tuple(getattr(mask, "shape", ()))) != 2:
                raise ValueError(f"{argument}: expected {name} (batch, length), got shape {shape}")
        for name, mask in entries(batch).items():
            if name.startswith("pixel") and name.endswith("mask") and isinstance(mask, Tensor) and not mask.all():
                raise ValueError(f"{argument}: {name} marks padding of images, which is not left out; give whole ones")
        for stream in STREAMS:
            ids = token_ids(batch, stream)
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
