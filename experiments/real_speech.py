"""Whisper without the subtraction of the mean: as trained, and after its writers are centred."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.flow import double_throughout
from normgeom.models.watch import NormSite, forward, hooked
from normgeom.surgery.ablation import ReducedNorm
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from experiments.models import FOLDER, spectrogram
from experiments.real_angles import described
from experiments.real_models import SPEECH, about, direction, removed
from experiments.registry import experiment

NAME = "whisper-base"
PROMPT = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
FRAMES = 50  # of the encoder, a second


RECORDINGS = ("real", "synthetic-valid-1", "synthetic-test-1")
ABOUT = about(NAME) | dict(
    corpus="real: five sentences of Sense and Sensibility read for LibriVox (test/data/librivox of the source archive "
    "of pocketsphinx 5.1.1), joined to 26 s; synthetic: eight sentences of a part of WikiText-2 each, read by espeak-ng"
)
COSTS = (
    "cost: increase of the teacher-forced loss in nats a token, a sentence counting as one.  dropped: no mean is "
    "subtracted, the weights as they are; uniform, signs_…: the component along this direction is taken from what the "
    "norm reads."
)


@cache
def speech(*names: str) -> "Speech":
    return Speech([SPEECH / f"{name}.wav" for name in names])


def by_recording(rows: Iterable[dict], of: "Speech", names: Sequence[str]) -> list[dict]:
    """A row a direction and recording out of a row a direction and sentence."""
    table = pd.DataFrame(rows)
    by_sentence = [name for name, said in zip(names, of.said, strict=True) for _ in said]
    table["text"] = by_sentence * (len(table) // len(by_sentence))
    keys = [name for name in table if name not in ("sentence", "cost")]
    return table.groupby(keys, sort=False).cost.agg(["mean", "min", "max"]).reset_index().to_dict("records")


@experiment(
    "published-speech-angles",
    "As published-angles, at the inputs of Whisper's norms; of the encoder up to where speech ends.",
    dict(recording=RECORDINGS),
    minutes=2,
    **ABOUT,
)
def angles(recording: str) -> list[dict]:
    of = speech(recording)
    return [dict(norm=norm) | described(of.read[site.name][0]) for norm, site in enumerate(of.sites)]


@experiment("published-speech-costs", f"One norm at a time.  {COSTS}", dict(norm=range(32)), minutes=5, **ABOUT)
def one_norm(norm: int) -> list[dict]:
    names = RECORDINGS[0], RECORDINGS[2]
    of = speech(*names)
    return by_recording(of.at(of.sites[norm]), of, names)


@experiment(
    "published-speech-removed",
    f"At all norms of a part, or of both.  {COSTS}",
    dict(part=("both", "encoder", "decoder")),
    minutes=3,
    **ABOUT,
)
def all_norms(part: str) -> list[dict]:
    of = speech(*RECORDINGS)
    return by_recording(of.everywhere(part), of, RECORDINGS)


@experiment(
    "published-speech-converted",
    "Whisper, the same with every LayerNorm's subtraction dropped, and converted to RMSNorm with one projection behind "
    "the encoder's stem: word errors, and the largest difference of a teacher-forced logit from the unconverted "
    "model's in float64, by dtype.",
    dict(recording=RECORDINGS[:2]),
    minutes=3,
    **ABOUT,
)
def converted(recording: str) -> dict:
    of = speech(recording)
    model, other = of.model, ng.to_rms_norm(copy.deepcopy(of.model), of.inputs[0])
    errors = dict(unchanged=of.errors(model), converted=of.errors(other))
    for part in ("encoder", "decoder", ""):
        with dropped([site for site in of.sites if part in site.name]):
            errors[f"dropped {part}".strip()] = of.errors(model)
    found = dict(words=len(" ".join(of.said[0]).split())) | {f"errors {name}": n for name, n in errors.items()}
    return found | differences(model, other, of.inputs[0])


class Speech:
    """Whisper on recordings of at most 30 s, with what was said: ``NAME.wav`` and ``NAME.txt``, a sentence a line.

    Attributes:
        said: for each recording its sentences.
        inputs: for each recording what the model takes, teacher-forced.
        sentence: for each recording the number of the sentence that each predicted token belongs to.
    """

    def __init__(self, recordings: Sequence[Path], folder: Path = FOLDER / NAME):
        self.model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.prompt = self.tokenizer.convert_tokens_to_ids([*PROMPT])
        self.said = [r.with_suffix(".txt").read_text("utf-8").splitlines() for r in recordings]
        self.inputs, self.sentence = [], []
        for recording, sentences in zip(recordings, self.said, strict=True):
            words = [self.tokenizer(f" {s.strip()}", add_special_tokens=False).input_ids for s in sentences]
            ids = torch.tensor([[*self.prompt, *(i for ids in words for i in ids), self.model.config.eos_token_id]])
            self.sentence.append(torch.tensor([n for n, ids in enumerate(words) for _ in ids]))
            features = spectrogram(folder, recording)
            self.inputs.append(dict(input_features=features, decoder_input_ids=ids))
        self.sites = ng.find_norms(self.model, self.inputs[0])
        self.encoder = self.model.model.encoder
        self.read: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}
        self._before: list[list[Tensor]] = []  # for each recording what enters each block of the encoder, and its end
        for recording, inputs in zip(recordings, self.inputs, strict=True):
            into: list[Tensor] = []
            keep = lambda _, args, kwargs: into.append(args[0])  # noqa: B023, E731
            look = lambda site, x, _: self.read[site.name].append(x)  # noqa: E731
            before = [(module, keep) for module in (*self.encoder.layers, self.encoder.layer_norm)]
            with hooked(before=before), ng.watch(self.model, self.sites, look):
                end = forward(self.model, inputs).encoder_last_hidden_state
            self._before.append([*into, end])
            spoken = int(FRAMES * (recording.stat().st_size - 44) / 2 / 16_000)
            for name in (name for name in self.read if ".encoder." in name):
                self.read[name][-1] = self.read[name][-1][:, :spoken]  # behind it there is silence

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
        base, x = self.losses(7), torch.cat([x[0, 1:] for x in self.read[site.name]])
        for which in ("dropped", "uniform", *(f"signs_{i:03d}" for i in range(drawn))):
            u = direction("uniform" if which == "dropped" else which, site.dim)
            cut = dropped([site]) if which == "dropped" else removed({site.module: u}, spare_first=False)
            with cut:
                costs = self.losses(layer) - base
            yield from _rows(costs, site=site.name, direction=which, angle=float(ng.angle(x, u).mean()))

    def everywhere(self, part: str, drawn: int = 3) -> Iterator[dict]:
        """The same at all norms of the "encoder", of the "decoder", or of "both"."""
        sites = [site for site in self.sites if part == "both" or part in site.name]
        base = self.losses(7)
        yield from _rows(base, part=part, direction="none")
        for which in ("dropped", *(f"signs_{i:03d}" for i in range(drawn))):
            cut = {site.module: direction(which, site.dim) for site in sites if which != "dropped"}
            with removed(cut, spare_first=False) if cut else dropped(sites):
                yield from _rows(self.losses() - base, part=part, direction=which)

    def errors(self, model: nn.Module) -> int:
        """How many words a model gets wrong in the first recording, choosing the likeliest token each time."""
        begin, features = torch.tensor([self.prompt]), self.inputs[0]["input_features"]
        ids = model.generate(features, decoder_input_ids=begin, max_new_tokens=120, do_sample=False)
        return word_errors(self.tokenizer.decode(ids[0], skip_special_tokens=True), " ".join(self.said[0]))


def _rows(costs: Tensor, **about: object) -> Iterator[dict]:
    yield from (about | dict(sentence=n, cost=cost) for n, cost in enumerate(costs.tolist()))


def word_errors(heard: str, said: str) -> int:
    """Words to insert, delete or replace, without regard to case and punctuation (Levenshtein's distance)."""
    a, b = ("".join(c for c in text.lower() if c.isalnum() or c.isspace()).split() for text in (heard, said))
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


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
        exact, wide = logits(model, torch.float64), copy.deepcopy(model).double()
        in_double = ng.to_rms_norm(wide, dict(inputs, input_features=inputs["input_features"].double()))
        found = dict(largest=float(exact.abs().max()))
        found["converted in float64"] = float((logits(in_double, torch.float64) - exact).abs().max())
    for dtype in (torch.float32, torch.bfloat16):
        for name, of in (("unconverted", model), ("converted", converted)):
            found[f"{name} {str(dtype)[6:]}"] = float((logits(of, dtype) - exact).abs().max())
    return found
