"""Whisper without the subtraction of the mean: as trained, and after its writers are centred."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import normgeom as ng
import torch
from normgeom.models.flow import double_throughout
from normgeom.models.watch import NormSite, forward, hooked
from normgeom.surgery.ablation import ReducedNorm
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from experiments.real_models import FOLDER, direction, removed
from experiments.models import spectrogram, word_errors

NAME = "whisper-base"
PROMPT = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
FRAMES = 50  # of the encoder, a second


class Speech:
    """Whisper on recordings of at most 30 s, with what was said: ``NAME.wav`` and ``NAME.txt``, a sentence a line.

    Attributes:
        said: for each recording its sentences.
        inputs: for each recording what the model takes, teacher-forced.
        sentence: for each recording the number of the sentence that each predicted token belongs to.
    """

    def __init__(self, recordings: list[Path], folder: Path = FOLDER / NAME):
        self.model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.prompt = self.tokenizer.convert_tokens_to_ids([*PROMPT])
        self.said = [r.with_suffix(".txt").read_text("utf-8").splitlines() for r in recordings]
        self.inputs, self.sentence = [], []
        for recording, sentences in zip(recordings, self.said, strict=True):
            words = [self.tokenizer(f" {s.strip()}", add_special_tokens=False).input_ids for s in sentences]
            ids = torch.tensor([[*self.prompt, *(i for ids in words for i in ids), self.tokenizer.eos_token_id]])
            self.sentence.append(torch.tensor([n for n, ids in enumerate(words) for _ in ids]))
            features = spectrogram(folder, recording)
            self.inputs.append(dict(input_features=features, decoder_input_ids=ids))
        self.sites = ng.find_norms(self.model, self.inputs[0])
        self.encoder = self.model.model.encoder
        self._before: list[list[Tensor]] = []  # for each recording what enters each block of the encoder, and its end
        for inputs in self.inputs:
            into: list[Tensor] = []
            keep = lambda _, args, kwargs: into.append(args[0])  # noqa: B023, E731
            with hooked(before=[(module, keep) for module in (*self.encoder.layers, self.encoder.layer_norm)]):
                end = forward(self.encoder, dict(input_features=inputs["input_features"])).last_hidden_state
            self._before.append([*into, end])

    def losses(self, layer: int = 0) -> Tensor:
        """Teacher-forced loss, a sentence an entry; the encoder runs from a block on, 7 is not at all."""
        found = []
        for inputs, before, sentence in zip(self.inputs, self._before, self.sentence, strict=True):
            h = before[layer]
            with torch.no_grad():
                for block in (*self.encoder.layers, self.encoder.layer_norm)[layer:]:
                    h = block(h) if block is self.encoder.layer_norm else block(h, None)
                ids = inputs["decoder_input_ids"]
                logits = self.model(encoder_outputs=BaseModelOutput(h), decoder_input_ids=ids).logits[0]
            start = len(self.prompt)
            loss = cross_entropy(logits[start - 1 : start - 1 + len(sentence)], ids[0, start:-1], reduction="none")
            found += [loss[sentence == n].mean() for n in range(int(sentence[-1]) + 1)]
        return torch.stack(found)

    def at(self, site: NormSite, drawn: int = 3) -> Iterator[dict]:
        """A row a sentence: the loss without the subtraction at one norm, and without 1, signs or Gaussian ones."""
        layer = 7
        if ".encoder." in site.name:
            layer = int(site.name.split(".")[3]) if "layers" in site.name else 6
        base = self.losses(7)
        with dropped([site]):
            yield from _rows(site.name, "dropped", self.losses(layer) - base)
        for which in ["uniform", *(f"{kind}_{i:03d}" for kind in ("signs", "random") for i in range(drawn))]:
            with removed({site.module: direction(which, site.dim)}, spare_first=False):
                yield from _rows(site.name, which, self.losses(layer) - base)

    def everywhere(self, part: str, drawn: int = 3) -> Iterator[dict]:
        """The same at all norms of the "encoder", of the "decoder", or of both with ""."""
        sites = [site for site in self.sites if part in site.name]
        base = self.losses(7)
        with dropped(sites):
            yield from _rows(part or "all", "dropped", self.losses() - base)
        for which in [*(f"{kind}_{i:03d}" for kind in ("signs", "random") for i in range(drawn))]:
            with removed({site.module: direction(which, site.dim) for site in sites}, spare_first=False):
                yield from _rows(part or "all", which, self.losses() - base)

    def heard(self, number: int) -> tuple[str, int]:
        """What the model writes down of a recording, and how many words of it are wrong."""
        ids = self.model.generate(
            self.inputs[number]["input_features"],
            decoder_input_ids=torch.tensor([self.prompt]),
            max_new_tokens=120,
            do_sample=False,
        )
        text = self.tokenizer.decode(ids[0], skip_special_tokens=True)
        return text, word_errors(text, " ".join(self.said[number]))

    def converted(self) -> WhisperForConditionalGeneration:
        """The model with RMSNorm in place of every LayerNorm, and one projection behind the encoder's stem."""
        return ng.to_rms_norm(copy.deepcopy(self.model), self.inputs[0])


def _rows(site: str, which: str, costs: Tensor) -> Iterator[dict]:
    yield from (dict(site=site, direction=which, sentence=n, cost=cost) for n, cost in enumerate(costs.tolist()))


@contextmanager
def dropped(sites: list[NormSite]) -> Iterator[None]:
    """While the block runs these LayerNorms subtract no mean (eq-drop-mean)."""
    reduced = {site.module: ReducedNorm(site, centered=False) for site in sites}
    instead = lambda module, args, kwargs, output: reduced[module](args[0])  # noqa: E731
    with hooked(after=[(module, instead) for module in reduced]):
        yield


@torch.no_grad()
def differences(model: nn.Module, converted: nn.Module, inputs: dict) -> dict[str, float]:
    """The largest difference of a logit from the unconverted model's in float64, by what computes it."""

    def logits(of: nn.Module, dtype: torch.dtype) -> Tensor:
        given = {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs.items()}
        return copy.deepcopy(of).to(dtype)(**given).logits.double()

    with double_throughout():
        exact = logits(model, torch.float64)
        found = dict(largest=float(exact.abs().max()))
        found["converted float64"] = float((logits(converted, torch.float64) - exact).abs().max())
    for dtype in (torch.float32, torch.bfloat16):
        for name, of in (("unconverted", model), ("converted", converted)):
            found[f"{name} {str(dtype)[6:]}"] = float((logits(of, dtype) - exact).abs().max())
    return found
