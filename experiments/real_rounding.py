"""Rounding inside the norms of published models: errors by depth, measured and predicted, and at the end."""

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial, reduce
from itertools import product

import normgeom as ng
import torch
from normgeom.models.watch import forward
from torch import Tensor
from transformers import WhisperForConditionalGeneration

from experiments.models import FOLDER, spectrogram
from experiments.real_models import LANGUAGE, SPEECH, Resumed, about, blocks, language_model, replaced, resampled
from experiments.registry import experiment

Norm = Callable[[ng.NormSite, Tensor], Tensor]  # what is computed in place of a norm

WHISPER, RECORDING, SECONDS = "whisper-base", "synthetic-test-1", 23
BLOCKS, LENGTH = 20, 17  # windows of text, and their tokens
MODELS = (*LANGUAGE, WHISPER)
SHIFT = 2.0**-9  # the relative error of a scale by which effects are measured
ABOUT = about(*MODELS, reads=SPEECH) | dict(
    corpus=f"WikiText-2 (test), {BLOCKS} windows of {LENGTH} tokens begun by BOS; Whisper's encoder: {SECONDS} s of "
    "espeak-ng reading sentences of WikiText-2, by seconds; position 0 left out; low, high: 90 % of resampled windows "
    "or seconds"
)
bf16, fp16, f64 = torch.bfloat16, torch.float16, torch.float64
STATISTICS = ("statistics", "sum")
ROUNDED = {"output": ("output",), "twice": ("normalised", "gain", "output"), "gain": ("gain",)}  # besides statistics


# norms, computed as they are told


def centred(site: ng.NormSite, x: Tensor) -> Tensor:
    """x in at least float32, for a LayerNorm without its mean."""
    wide = x if x.dtype == f64 else x.float()
    return wide - wide.mean(-1, keepdim=True) if site.kind == "layer" else wide


def factor(c: Tensor, eps: float, dtype: torch.dtype, way: str = "") -> Tensor:
    """1/√(mean square + ε), each step in ``dtype``; "sum": each partial sum too, "scaled": of entries below 1."""
    power = torch.ones(())
    if way == "scaled":
        top = c.abs().amax(-1, keepdim=True)
        power = torch.ldexp(torch.ones_like(top), -top.frexp().exponent)
    squares = (c * power).to(dtype).square()
    mean = reduce(torch.add, squares.split(1, -1)) / c.shape[-1] if way == "sum" else squares.mean(-1, keepdim=True)
    return (mean + (eps * power.square()).to(dtype)).rsqrt().to(c.dtype) * power


def normalised(site: ng.NormSite, x: Tensor) -> Tensor:
    """A norm's output before gain and bias."""
    c = centred(site, x)
    return c * factor(c, site.eps, c.dtype)


def unrounded(site: ng.NormSite, x: Tensor) -> Tensor:
    """The norm itself, computed in at least float32; its result has the input's format."""
    n = normalised(site, x)
    return (n * site.weight.to(n.dtype) + site.bias.to(n.dtype)).to(x.dtype)


def rounding(way: str, dtype: torch.dtype = bf16) -> Norm:
    """The same, with one thing rounded to ``dtype``: the statistics in one of three ways, or the parts in ROUNDED."""

    def cast(tensor: Tensor, part: str) -> Tensor:
        return tensor.to(dtype).to(tensor.dtype) if part in ROUNDED.get(way, ()) else tensor

    def norm(site: ng.NormSite, x: Tensor) -> Tensor:
        c = centred(site, x)
        n = cast(c * factor(c, site.eps, c.dtype if way in ROUNDED else dtype, way), "normalised")
        y = n * cast(site.weight, "gain").to(c.dtype) + site.bias.to(c.dtype)
        return cast(y, "output").to(x.dtype)

    return norm


def with_errors(relative: Mapping[ng.NormSite, Tensor | float]) -> Norm:
    """The norm itself, with a relative error of its scales at some sites."""
    return lambda site, x: (1 + relative.get(site, 0.0)) * unrounded(site, x)


# models, whose norms others replace


class Network(Resumed):
    """Blocks and last norm of a model on its text or recording; ``run`` is given what its norms compute.

    Attributes:
        model: a copy, in ``dtype``.
        example: inputs that run all of it; None for a language model.
        modules: the norms of these blocks.
    """

    def __init__(self, name: str, dtype: torch.dtype = torch.float32):
        if name == WHISPER:
            model, part = WhisperForConditionalGeneration.from_pretrained(FOLDER / name).eval(), "model.encoder"
            features = spectrogram(FOLDER / name, SPEECH / f"{RECORDING}.wav")
            self.example = dict(input_features=features, decoder_input_ids=torch.tensor([[model.config.bos_token_id]]))
            inputs, self.shape = dict(input_features=features.to(dtype)), (SECONDS, 50)
        else:
            (model, tokenizer), part, self.example = language_model(name), "model", None
            inputs = dict(input_ids=blocks(tokenizer, "test", BLOCKS, LENGTH), use_cache=False)
            self.shape = (BLOCKS, LENGTH - 1)
        sites = [site for site in ng.find_norms(model, self.example) if site.name.startswith(part)]
        self.model = copy.deepcopy(model).to(dtype)
        inner = self.model.get_submodule(part)
        in_order = [*inner.layers, inner.layer_norm if name == WHISPER else inner.norm]
        self.modules = {site: self.model.get_submodule(site.name) for site in sites}
        with self.norms_replaced(unrounded):
            super().__init__(in_order, lambda: forward(inner, inputs))

    def norms_replaced(self, norm: Norm) -> AbstractContextManager:
        return replaced({module: partial(norm, site) for site, module in self.modules.items()}, spare_first=False)

    def run(self, norm: Norm, start: int = 0) -> list[Tensor]:
        """What leaves each block from ``start`` on, and the last norm, ``(windows or seconds, positions, d)``."""
        with self.norms_replaced(norm):
            return [self.measured(h).double() for h in self.ends(start)]

    def measured(self, h: Tensor) -> Tensor:
        """Of all positions those that are measured, ``(windows or seconds, positions, d)``."""
        return h[:, 1:].flatten(0, 1)[: math.prod(self.shape)].unflatten(0, self.shape)

    def inputs(self) -> dict[ng.NormSite, Tensor]:
        """What each norm reads."""
        seen = {}

        def norm(site: ng.NormSite, x: Tensor) -> Tensor:
            seen[site] = x
            return unrounded(site, x)

        self.run(norm)
        return seen

    def predictions(self, end: Tensor) -> Tensor:
        """Log-probabilities of a language model after every fourth position, from what leaves its last norm."""
        with torch.no_grad():
            return self.model.lm_head(end[:, ::4].to(self.model.dtype)).double().log_softmax(-1)


def squared_errors(found: list[Tensor], exact: list[Tensor]) -> Tensor:
    """Mean squared relative error in each window, ``(len(found), windows)``; ``found`` is of the last blocks."""
    rows = []
    for h, reference in zip(found, exact[-len(found) :], strict=True):
        relative = (h - reference).norm(dim=-1) / reference.norm(dim=-1)
        rows.append(relative.square().mean(-1))
    return torch.stack(rows)


def rms(found: list[Tensor], exact: list[Tensor]) -> Tensor:
    """Root mean square of the relative error behind each block."""
    return squared_errors(found, exact).mean(-1).sqrt()


def at_the_end(network: Network, end: Tensor, reference: Network, exact: Tensor) -> dict[str, Tensor]:
    """Error of what leaves the last norm, divergence and agreement of what a language model then predicts."""
    end, generator = end.nan_to_num(0, 0, 0), torch.Generator().manual_seed(0)
    (error,) = squared_errors([end], [exact])
    low, high = resampled(error, generator)
    row = dict(error=error.mean().sqrt(), low=low.sqrt(), high=high.sqrt())
    if hasattr(network.model, "lm_head"):
        q, p = network.predictions(end), reference.predictions(exact)
        kl = (p.exp() * (p - q)).sum(-1).mean(-1)
        row |= dict(kl=kl.mean(), agree=(p.argmax(-1) == q.argmax(-1)).double().mean())
        row["kl_low"], row["kl_high"] = resampled(kl, generator)
    return row


def short(row: dict) -> dict:
    """Numbers to three digits."""
    return {key: v if isinstance(v, (str, int)) else float(f"{float(v):.3g}") for key, v in row.items()}


@experiment(
    "published-rounding",
    {
        "published-rounding": "Relative error of the stream behind each block, root mean square (last row: behind the "
        "last norm), where one thing in every norm is rounded to bfloat16 and all else is float32, against float64.  "
        "statistics: squares, mean, root; sum: every partial sum too; output: the result; twice: normalised vector, "
        "gain, result; gain: the gain.  coherent_, random_: what mean and spread of each scale's error predict; "
        "together, apart: effect of one relative error of all scales, equal or of random sign, in its units.",
        "published-rounding-end": "Behind the last norm the same, and of whole models in 16 bits (statistics, scaled: "
        "in that format); KL in nats, share of positions with the same likeliest token (every fourth).",
        "published-rounding-speech": "The same errors of Whisper's encoder, which predicts no tokens.",
        "published-norm-inputs": "Of each norm over all positions, the first too: least mean square, largest entry and "
        "length, largest share of ε; bias_, spread_: of its scale's relative error with bfloat16 statistics.",
    },
    dict(model=MODELS),
    minutes=12,
    workers=1,
    **ABOUT,
)
def by_depth(model: str) -> dict[str, list[dict]]:
    reference, network = Network(model, f64), Network(model)
    exact, inputs = reference.run(unrounded), network.inputs()
    read = {site: what_is_read(site, x) for site, x in inputs.items()}
    ends = {way: network.run(rounding(way)) for way in (*STATISTICS, *ROUNDED)}
    columns = {way: rms(found, exact) for way, found in ends.items()} | predicted(network, inputs, read)
    last = [dict(way=way) | at_the_end(network, found[-1], reference, exact[-1]) for way, found in ends.items()]
    for dtype, way in product((bf16, fp16), ("output", "statistics", "scaled")):
        whole = Network(model, dtype)
        end = whole.run(rounding(way, dtype))[-1]
        last.append(dict(way=f"{str(dtype)[6:]} model, {way}") | at_the_end(whole, end, reference, exact[-1]))
    return {
        "published-rounding": [
            dict(block=i + 1) | short({name: column[i] for name, column in columns.items()}) for i in range(len(exact))
        ],
        "published-rounding-end": [short(row) for row in last if "kl" in row],
        "published-rounding-speech": [short(row) for row in last if "kl" not in row],
        "published-norm-inputs": [short(row) for row in read.values()],
    }


def what_is_read(site: ng.NormSite, x: Tensor) -> dict:
    """What a norm reads, and mean and spread of the relative error of its scales with rounded statistics."""
    c = centred(site, x).double()
    least = c.square().mean(-1).min()
    row = dict(site=site.name, dim=site.dim, eps=site.eps, least=least, largest=x.abs().max())
    row |= dict(longest=x.norm(dim=-1).max(), eps_share=site.eps / (least + site.eps))
    for way in STATISTICS:
        relative = factor(c, site.eps, bf16, way) / factor(c, site.eps, f64) - 1
        row[f"bias_{way}"], row[f"spread_{way}"] = relative.mean().item(), relative.std().item()
    return row


def predicted(network: Network, inputs: dict, read: dict) -> dict[str, Tensor]:
    """The error behind each block that follows from mean and spread of the errors of all scales, and unit effects."""
    base, generator = network.run(unrounded), torch.Generator().manual_seed(0)
    effects = {}  # of an error of one norm's scales of size 1 and random sign, squared, behind each block
    for site, x in inputs.items():
        signs = torch.randint(2, (*x.shape[:-1], 1), generator=generator) * 2.0 - 1
        later = network.run(with_errors({site: SHIFT * signs}), network.block_of(network.modules[site]))
        effect = squared_errors(later, base).mean(-1) / SHIFT**2
        effects[site] = torch.cat([torch.zeros(len(base) - len(effect)), effect])
    columns = {}
    for way in STATISTICS:
        biases = {site: row[f"bias_{way}"] for site, row in read.items()}
        columns[f"coherent_{way}"] = rms(network.run(with_errors(biases)), base)
        squares = [row[f"spread_{way}"] ** 2 * effects[site] for site, row in read.items()]
        columns[f"random_{way}"] = sum(squares).sqrt()
    columns["together"] = rms(network.run(with_errors(dict.fromkeys(inputs, SHIFT))), base) / SHIFT
    columns["apart"] = sum(effects.values()).sqrt()
    return columns
