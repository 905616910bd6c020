"""Whisper without mean subtraction: with the weights as trained, and after its writers are centred.

It reads ``_build/speech``: NAME.wav (16 kHz, 16 bits, one channel), in which 0.3 s of silence follow each sentence, and
NAME.txt, with one sentence per line.

* *real*: the recordings in test/data/librivox of the source archive of pocketsphinx 5.1.1, in order of name.
* *synthetic-valid-1*, *synthetic-test-1*: sentences of that part of WikiText-2, each read by ``espeak-ng -v en`` and
  resampled by sox, as many as fit into 29 s.  Sentences end at " . "; those used have 6 to 13 tokens with the full
  stop, start with a capital, and otherwise contain only letters, spaces, commas and apostrophes.  Of n such sentences,
  every (n // 60)th is read, starting with the first, without the spaces before stops, commas and apostrophes.
"""

import copy
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.flow import double_throughout
from normgeom.models.watch import NormSite, forward
from normgeom.surgery.ablation import ReducedNorm
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, WhisperForConditionalGeneration

from experiments.models import FOLDER, spectrogram
from experiments.real_angles import described
from experiments.real_models import SPEECH, about, direction, removed, replaced
from experiments.registry import experiment

NAME = "whisper-base"
PROMPT = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
FRAMES = 50  # frames of the encoder per second
SIGNS = tuple(f"signs_{i:03d}" for i in range(3))
RECORDINGS = ("real", "synthetic-valid-1", "synthetic-test-1")
ABOUT = about(NAME, reads=SPEECH) | dict(
    corpus="real: five sentences of Sense and Sensibility, read for LibriVox (test/data/librivox in the source archive "
    "of pocketsphinx 5.1.1), joined to 26 s; synthetic-…: eight sentences of one part of WikiText-2, read by espeak-ng"
)
COSTS = (
    "cost: increase of the teacher-forced loss in nats per token, averaged over sentences. direction: dropped, the "
    "norms do not subtract the mean, with weights as trained; signs_…, the norms' inputs lose their component along "
    "this sign vector."
)


@cache
def speech(*names: str) -> "Speech":
    return Speech([SPEECH / f"{name}.wav" for name in names])


@experiment(
    "published-speech-angles",
    "Columns as in published-angles, at the inputs of Whisper's norms; in the encoder, up to where speech ends.",
    dict(recording=RECORDINGS),
    minutes=2,
    **ABOUT,
)
def angles(recording: str) -> list[dict]:
    whisper = speech(recording)
    return [dict(norm=norm) | described(whisper.read[site.name][0]) for norm, site in enumerate(whisper.sites)]


@experiment(
    "published-speech-costs",
    f"One norm is changed at a time. {COSTS} angle: mean angle in degrees between the norm's input and the direction; "
    "for dropped, between the input and 1.",
    dict(norm=range(32)),
    minutes=15,
    **ABOUT,
)
def one_norm(norm: int) -> pd.DataFrame:
    whisper = speech(RECORDINGS[0], RECORDINGS[2])
    site, rows = whisper.sites[norm], whisper.without([whisper.sites[norm]])
    x = torch.cat([x[0, 1:] for x in whisper.read[site.name]])
    degrees = {which: float(ng.angle(x, direction(which, site.dim)).mean()) for which in ("uniform", *SIGNS)}
    return rows.assign(site=site.name, angle=rows.direction.replace("dropped", "uniform").map(degrees))


@experiment("published-speech-removed", f"All norms are changed. {COSTS}", {}, minutes=3, **ABOUT)
def all_norms() -> pd.DataFrame:
    whisper = speech(*RECORDINGS)
    return whisper.without(whisper.sites)


@experiment(
    "published-speech-converted",
    "errors …: word errors of Whisper unchanged, converted to RMSNorm (with one projection after the encoder's stem), "
    "and with mean subtraction dropped; words: words spoken. Columns with dtypes: largest difference of a "
    "teacher-forced logit from the unconverted model's in float64; largest: that model's largest absolute logit.",
    dict(recording=RECORDINGS[:2]),
    minutes=3,
    **ABOUT,
)
def converted(recording: str) -> dict:
    whisper = speech(recording)
    model, other = whisper.model, ng.to_rms_norm(copy.deepcopy(whisper.model), whisper.inputs[0])
    errors = dict(unchanged=whisper.errors(model), converted=whisper.errors(other))
    for part in ("encoder", "decoder", ""):
        with dropped([site for site in whisper.sites if part in site.name]):
            errors[f"dropped {part}".strip()] = whisper.errors(model)
    found = dict(words=len(whisper.words.split())) | {f"errors {name}": n for name, n in errors.items()}
    return found | differences(model, other, whisper.inputs[0])


class Speech:
    """Whisper on recordings of at most 30 s with transcripts: ``NAME.wav`` and ``NAME.txt``, one sentence per line.

    Attributes:
        said: the sentences of each recording, by name.
        inputs: for each recording, the model's teacher-forced inputs.
        sentence: for each recording, the number of the sentence to which each predicted token belongs.
        read: for each norm, what it reads from each recording; in the encoder, up to where speech ends.
    """

    def __init__(self, recordings: Sequence[Path], folder: Path = FOLDER / NAME):
        self.model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.prompt = self.tokenizer.convert_tokens_to_ids([*PROMPT])
        self.said = {r.stem: r.with_suffix(".txt").read_text("utf-8").splitlines() for r in recordings}
        self.inputs, self.sentence = [], []
        for recording, sentences in zip(recordings, self.said.values(), strict=True):
            words = [self.tokenizer(f" {s.strip()}", add_special_tokens=False).input_ids for s in sentences]
            ids = torch.tensor([[*self.prompt, *(i for ids in words for i in ids), self.model.config.eos_token_id]])
            self.sentence.append(torch.tensor([n for n, ids in enumerate(words) for _ in ids]))
            self.inputs.append(dict(input_features=spectrogram(folder, recording), decoder_input_ids=ids))
        self.sites = ng.find_norms(self.model, self.inputs[0])
        self.read: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}
        for recording, inputs in zip(recordings, self.inputs, strict=True):
            spoken = int(FRAMES * (recording.stat().st_size - 44) / 2 / 16_000)  # silence follows

            def look(site: NormSite, x: Tensor, _y: Tensor, spoken: int = spoken) -> None:
                self.read[site.name].append(x[:, :spoken] if ".encoder." in site.name else x)

            with ng.watch(self.model, self.sites, look):
                forward(self.model, inputs)

    def losses(self) -> Tensor:
        """Return the teacher-forced loss of each recording in nats per token, averaged over sentences."""
        found, start = [], len(self.prompt)
        for inputs, sentence in zip(self.inputs, self.sentence, strict=True):
            with torch.no_grad():
                logits = self.model(**inputs).logits[0]
            ids = inputs["decoder_input_ids"][0, start:-1]
            loss = cross_entropy(logits[start - 1 : start - 1 + len(sentence)], ids, reduction="none")
            found.append(torch.stack([loss[sentence == n].mean() for n in sentence.unique()]).mean())
        return torch.stack(found)

    def without(self, sites: Sequence[NormSite]) -> pd.DataFrame:
        """Return by recording the cost if these norms drop the mean subtraction, or their inputs lose a sign vector."""
        base, rows = self.losses(), []
        for which in ("dropped", *SIGNS):
            cut = {site.module: direction(which, site.dim) for site in sites if which != "dropped"}
            with removed(cut, spare_first=False) if cut else dropped(sites):
                costs = (self.losses() - base).tolist()
            rows += [dict(direction=which, text=name, cost=cost) for name, cost in zip(self.said, costs, strict=True)]
        return pd.DataFrame(rows)

    def errors(self, model: nn.Module) -> int:
        """Count the words that a model gets wrong in the first recording with greedy decoding."""
        begin, features = torch.tensor([self.prompt]), self.inputs[0]["input_features"]
        ids = model.generate(features, decoder_input_ids=begin, max_new_tokens=120, do_sample=False)
        return word_errors(self.tokenizer.decode(ids[0], skip_special_tokens=True), self.words)

    @property
    def words(self) -> str:
        """Return the words of the first recording."""
        return " ".join(next(iter(self.said.values())))


def word_errors(heard: str, said: str) -> int:
    """Count the words to insert, delete or replace, ignoring case and punctuation (Levenshtein distance)."""
    a, b = ("".join(c for c in text.lower() if c.isalnum() or c.isspace()).split() for text in (heard, said))
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def dropped(sites: Iterable[NormSite]) -> AbstractContextManager:
    """While the block runs, these LayerNorms do not subtract the mean (eq-drop-mean)."""
    return replaced({site.module: ReducedNorm(site, centered=False) for site in sites}, spare_first=False)


@torch.no_grad()
def differences(model: nn.Module, converted: nn.Module, inputs: dict) -> dict[str, float]:
    """Return the largest difference of a logit from the unconverted model's in float64, by model and dtype."""

    def logits(network: nn.Module, dtype: torch.dtype) -> Tensor:
        given = {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs.items()}
        return copy.deepcopy(network).to(dtype)(**given).logits.double()

    with double_throughout():
        exact, wide = logits(model, torch.float64), copy.deepcopy(model).double()
        in_double = ng.to_rms_norm(wide, dict(inputs, input_features=inputs["input_features"].double()))
        found = dict(largest=float(exact.abs().max()))
        found["converted in float64"] = float((logits(in_double, torch.float64) - exact).abs().max())
    for dtype in (torch.float32, torch.bfloat16):
        for name, network in (("unconverted", model), ("converted", converted)):
            found[f"{name} {str(dtype)[6:]}"] = float((logits(network, dtype) - exact).abs().max())
    return found
