"""What the measurements on published models share: models, texts, and directions removed where norms read."""

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
LARGEST = 3  # how many coordinates are set apart


def about(*names: str, reads: Path = TEXTS) -> dict[str, object]:
    """What records of these models have in common: the copies, and what must be there to measure them."""
    paths = [*(FOLDER / name for name in names), reads]
    copies = (f"{name} ({MODELS[name].copy}; {', '.join(MODELS[name].wheels)})" for name in names)
    return dict(
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


def removed(directions: Mapping[nn.Module, Tensor], spare_first: bool) -> AbstractContextManager:
    """While the block runs, each of these norms reads its input less the component along its direction."""

    def cut(u: Tensor):
        def hook(_module, args, kwargs):
            x = args[0]
            y = x - (x @ u)[..., None] * u
            return (torch.cat([x[:, :1], y[:, 1:]], 1) if spare_first else y, *args[1:]), kwargs

        return hook

    return hooked(before=[(norm, cut(u)) for norm, u in directions.items()])


def replaced(norms: Mapping[nn.Module, Callable[[Tensor], Tensor]], spare_first: bool) -> AbstractContextManager:
    """While the block runs, others compute in place of these norms."""

    def hook(module, args, _kwargs, output):
        y = norms[module](args[0])
        return torch.cat([output[:, :1], y[:, 1:]], 1) if spare_first else y

    return hooked(after=[(norm, hook) for norm in norms])


class Resumed:
    """The blocks of a model, which can run again from any of them on, on what they read while ``run`` ran the model."""

    def __init__(self, blocks: Iterable[nn.Module], run: Callable[[], object]):
        self.blocks, self.calls = [*blocks], []

        def keep(_module, args, kwargs):
            self.calls.append((args, kwargs))

        with hooked(before=[(block, keep) for block in self.blocks]):
            run()

    def block_of(self, module: nn.Module) -> int:
        """The number of the block that a module is in."""
        return next(i for i, block in enumerate(self.blocks) if module in block.modules())

    @torch.no_grad()
    def ends(self, start: int = 0) -> list[Tensor]:
        """What leaves each block from ``start`` on, ``(texts, positions, d)``."""
        h, found = self.calls[start][0][0], []
        for block, (args, kwargs) in zip(self.blocks[start:], self.calls[start:], strict=True):
            h = block(h, *args[1:], **kwargs)
            found.append(h)
        return found
