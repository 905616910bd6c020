"""Shared by the measurements on published models: models, texts, and the removal of directions from norms' inputs."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
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
LARGEST = 3  # the number of largest coordinates that are treated separately


def about(*names: str, reads: Path = TEXTS) -> dict[str, object]:
    """Return what records of these models have in common: their copies, and the paths that a measurement needs."""
    paths = [*(FOLDER / name for name in names), reads]
    copies = (f"{name} ({MODELS[name].copy}; {', '.join(MODELS[name].wheels)})" for name in names)
    return dict(
        needs=lambda: ", ".join(str(path) for path in paths if not path.exists()),
        models="; ".join(copies),
        seed="0, for all directions, which have the names of normgeom.Survey",
    )


@cache
def language_model(name: str) -> tuple[nn.Module, object]:
    """Return a model in evaluation mode and float32, and its tokenizer."""
    return AutoModelForCausalLM.from_pretrained(FOLDER / name).eval(), AutoTokenizer.from_pretrained(FOLDER / name)


def blocks(tokenizer: object, part: str, count: int, length: int) -> Tensor:
    """Return windows of token ids ``(count, length)``, spread evenly over a text, each starting with BOS."""
    text = load_corpus("stdlib").text if part == "stdlib" else (TEXTS / f"{part}.txt").read_text("utf-8")
    ids = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
    (rows,) = windows(ids, length - 1, len(ids))
    rows = torch.cat([torch.full((len(rows), 1), tokenizer.bos_token_id), rows], 1)
    return rows[torch.linspace(0, len(rows) - 1, count).long()]


def sites_of(model: nn.Module) -> list[ng.NormSite]:
    """Return the norms over the model's full width, without those of queries and keys."""
    return [site for site in ng.find_norms(model) if site.dim == model.config.hidden_size]


def shares(x: Tensor) -> Tensor:
    """Return each coordinate's mean share of the squared length for x ``(texts, positions, d)`` without position 0."""
    x = x[:, 1:].flatten(0, -2)
    return (x.square() / x.square().sum(-1, keepdim=True)).mean(0)


def direction(name: str, d: int, without: Tensor | None = None) -> Tensor:
    """Return a unit vector named as in a survey ("uniform", "signs_…", "random_…"), zero at coordinates ``without``."""
    u = unit(name, d, seed=0)
    if without is not None:
        u[without] = 0
    return normalize(u, dim=0).float()


def resampled(values: Tensor, generator: torch.Generator, over: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return 5 % and 95 % quantiles of the mean of values ``(n,)``, divided by that of ``over``, over 1000 draws."""
    drawn = torch.randint(len(values), (1000, len(values)), generator=generator)
    means = values[drawn].mean(1) if over is None else values[drawn].mean(1) / over[drawn].mean(1)
    return means.quantile(0.05), means.quantile(0.95)


def removed(directions: Mapping[nn.Module, Tensor], spare_first: bool) -> AbstractContextManager:
    """While the block runs, each of these norms reads its input without the component along its direction."""

    def cut(u: Tensor):
        def hook(_module, args, kwargs):
            x = args[0]
            y = x - (x @ u)[..., None] * u
            return (torch.cat([x[:, :1], y[:, 1:]], 1) if spare_first else y, *args[1:]), kwargs

        return hook

    return hooked(before=[(norm, cut(u)) for norm, u in directions.items()])


def replaced(norms: Mapping[nn.Module, Callable[[Tensor], Tensor]], spare_first: bool) -> AbstractContextManager:
    """While the block runs, other functions compute the outputs of these norms."""

    def hook(module, args, _kwargs, output):
        y = norms[module](args[0])
        return torch.cat([output[:, :1], y[:, 1:]], 1) if spare_first else y

    return hooked(after=[(norm, hook) for norm in norms])


class Resumed:
    """The blocks of a model, which can run again from any block on the inputs that were seen while ``run`` ran it."""

    def __init__(self, blocks: Iterable[nn.Module], run: Callable[[], object]):
        self.blocks, self.calls = [*blocks], []

        def keep(_module, args, kwargs):
            self.calls.append((args, kwargs))

        with hooked(before=[(block, keep) for block in self.blocks]):
            run()

    def block_of(self, module: nn.Module) -> int:
        """Return the number of the block that contains a module."""
        return next(i for i, block in enumerate(self.blocks) if module in block.modules())

    @torch.no_grad()
    def ends(self, start: int = 0) -> list[Tensor]:
        """Return the output of each block from ``start`` on, ``(texts, positions, d)``."""
        h, found = self.calls[start][0][0], []
        for block, (args, kwargs) in zip(self.blocks[start:], self.calls[start:], strict=True):
            h = block(h, *args[1:], **kwargs)
            found.append(h)
        return found
