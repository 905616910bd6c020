"""What the measurements on published models share: models, texts, and directions removed where norms read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import normgeom as ng
import torch
from normgeom.models.watch import hooked
from normgeom.survey.directions import unit
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import windows
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.models import FOLDER, MODELS

TEXTS, SPEECH = Path("_build/wikitext-2"), Path("_build/speech")
LANGUAGE = ("SmolLM2-135M-Instruct", "gemma-3-270m")
PARTS = ("valid", "test")  # of WikiText-2
LARGEST = 3  # how many coordinates are set apart


def about(*names: str) -> dict[str, object]:
    """What records of these models have in common: the copies, and what must be there to measure them."""
    paths = [*(FOLDER / name for name in names), SPEECH if "whisper-base" in names else TEXTS]
    copies = (f"{name} ({MODELS[name].copy}; {', '.join(MODELS[name].wheels)})" for name in names)
    return dict(
        optional=True,
        needs=lambda: ", ".join(str(path) for path in paths if not path.exists()),
        models="; ".join(copies),
        seed="0: of all directions, named as in normgeom.Survey",
    )


@cache
def language_model(name: str) -> tuple[nn.Module, object]:
    """A model in evaluation mode, float32, and its tokenizer."""
    return AutoModelForCausalLM.from_pretrained(FOLDER / name).eval(), AutoTokenizer.from_pretrained(FOLDER / name)


def blocks(tokenizer: object, part: str, count: int, length: int) -> Tensor:
    """Windows of token ids ``(count, length)``, spread evenly over a text, each begun by the model's BOS."""
    text = load_corpus("stdlib").text if part == "stdlib" else (TEXTS / f"{part}.txt").read_text("utf-8")
    ids = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
    (rows,) = windows(ids, length - 1, len(ids))
    rows = torch.cat([torch.full((len(rows), 1), tokenizer.bos_token_id), rows], 1)
    return rows[torch.linspace(0, len(rows) - 1, count).long()]


def sites_of(model: nn.Module) -> list[ng.NormSite]:
    """The norms over the model's full width: those of queries and keys are left out."""
    return [site for site in ng.find_norms(model) if site.dim == model.config.hidden_size]


def shares(x: Tensor) -> Tensor:
    """The mean share of the squared length in each coordinate of ``(texts, positions, d)``, without position 0."""
    x = x[:, 1:].flatten(0, -2)
    return (x.square() / x.square().sum(-1, keepdim=True)).mean(0)


def direction(name: str, d: int, without: Tensor | None = None) -> Tensor:
    """A unit vector: "uniform", "signs_…", "random_…" as in a survey; zero at the coordinates ``without``."""
    u = unit(name, d, seed=0)
    if without is not None:
        u[without] = 0
    return normalize(u, dim=0).float()


def resampled(values: Tensor, generator: torch.Generator, over: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """5 % and 95 % quantiles of the mean of ``values`` ``(n,)``, over that of ``over``, in 1000 draws of n of them."""
    drawn = torch.randint(len(values), (1000, len(values)), generator=generator)
    means = values[drawn].mean(1) if over is None else values[drawn].mean(1) / over[drawn].mean(1)
    return means.quantile(0.05), means.quantile(0.95)


@contextmanager
def removed(directions: Mapping[nn.Module, Tensor], spare_first: bool) -> Iterator[None]:
    """While the block runs, each of these norms reads its input less the component along its direction."""

    def cut(u: Tensor):
        def hook(_module, args, kwargs):
            x = args[0]
            y = x - (x @ u)[..., None] * u
            return (torch.cat([x[:, :1], y[:, 1:]], 1) if spare_first else y, *args[1:]), kwargs

        return hook

    with hooked(before=[(norm, cut(u)) for norm, u in directions.items()]):
        yield


@contextmanager
def replaced(norms: Mapping[nn.Module, nn.Module], spare_first: bool) -> Iterator[None]:
    """While the block runs, others compute in place of these norms."""

    def hook(module, args, _kwargs, output):
        y = norms[module](args[0])
        return torch.cat([output[:, :1], y[:, 1:]], 1) if spare_first else y

    with hooked(after=[(norm, hook) for norm in norms]):
        yield


class Resumed:
    """A causal language model on texts ``ids``, which can run again from any of its blocks on.

    Attributes:
        logp: log-probabilities ``(texts, kept, vocabulary)`` of the unchanged model.
        loss: in nats, of the true next token, ``(texts, kept)``.
    """

    def __init__(self, model: nn.Module, ids: Tensor, kept: slice):
        self.model, self.layers, self.kept = model, model.model.layers, kept
        self.targets = ids[:, 1:][:, kept, None]
        self.calls = []
        keep = lambda _module, args, kwargs: self.calls.append((args, kwargs))  # noqa: E731
        with torch.no_grad(), hooked(before=[(layer, keep) for layer in self.layers]):
            h = model.model(ids, use_cache=False).last_hidden_state
        self.calls.append(((self.end(len(self.layers) - 1),), {}))
        self.logp = self._head(h)
        self.loss = self._loss(self.logp)

    @torch.no_grad()
    def end(self, layer: int) -> Tensor:
        """What the last block writes, run again from a block on, ``(texts, positions, d)``."""
        h = self.calls[layer][0][0]
        for block, (_, kwargs) in zip(self.layers[layer:], self.calls[layer:], strict=False):
            h = block(h, **kwargs)
        return h

    @torch.no_grad()
    def run(self, layer: int) -> tuple[Tensor, Tensor]:
        """Increase of the loss and divergence from the unchanged predictions, ``(texts, kept)``, from a block on."""
        logp = self._head(self.model.model.norm(self.end(layer)))
        return self._loss(logp) - self.loss, (self.logp.exp() * (self.logp - logp)).sum(-1)

    @torch.no_grad()
    def _head(self, h: Tensor) -> Tensor:
        return self.model.lm_head(h[:, :-1][:, self.kept]).log_softmax(-1)

    def _loss(self, logp: Tensor) -> Tensor:
        return -logp.gather(-1, self.targets)[..., 0]
