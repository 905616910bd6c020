"""Rounding inside the norms of published models: errors by depth, measured and predicted, and at the output."""

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

Norm = Callable[[ng.NormSite, Tensor], Tensor]  # a function that replaces a norm

WHISPER, RECORDING, SECONDS = "whisper-base", "synthetic-test-1", 23
BLOCKS, LENGTH = 20, 17  # the number of windows of text, and of tokens in each
MODELS = (*LANGUAGE, WHISPER)
SHIFT = 2.0**-9  # the relative error of scales with which effects are measured
ABOUT = about(*MODELS, reads=SPEECH) | dict(
    corpus=f"WikiText-2 (test), {BLOCKS} windows of {LENGTH} tokens, each starting with BOS; for Whisper's encoder, "
    f"{SECONDS} s in which espeak-ng reads sentences of WikiText-2; position 0 is left out; low, high: 90 % interval "
    "over resampled windows of text or seconds of speech"
)
bf16, fp16, f64 = torch.bfloat16, torch.float16, torch.float64
STATISTICS = ("statistics", "sum")
ROUNDED = {"output": ("output",), "twice": ("normalised", "gain", "output"), "gain": ("gain",)}  # what is rounded


# norms that round in given places


def centred(site: ng.NormSite, x: Tensor) -> Tensor:
    """Return x in at least float32, for a LayerNorm minus its mean."""
    wide = x if x.dtype == f64 else x.float()
    return wide - wide.mean(-1, keepdim=True) if site.kind == "layer" else wide


def factor(c: Tensor, eps: float, dtype: torch.dtype, way: str = "") -> Tensor:
    """Return 1/√(mean square + ε), each step in ``dtype``; "sum": partial sums too; "scaled": with entries below 1."""
    power = torch.ones(())
    if way == "scaled":
        top = c.abs().amax(-1, keepdim=True)
        power = torch.ldexp(torch.ones_like(top), -top.frexp().exponent)
    squares = (c * power).to(dtype).square()
    mean = reduce(torch.add, squares.split(1, -1)) / c.shape[-1] if way == "sum" else squares.mean(-1, keepdim=True)
    return (mean + (eps * power.square()).to(dtype)).rsqrt().to(c.dtype) * power


def normalised(site: ng.NormSite, x: Tensor) -> Tensor:
    """Return a norm's output before gain and bias."""
    c = centred(site, x)
    return c * factor(c, site.eps, c.dtype)


def unrounded(site: ng.NormSite, x: Tensor) -> Tensor:
    """Return the norm's output, computed in at least float32 and converted to the dtype of x."""
    n = normalised(site, x)
    return (n * site.weight.to(n.dtype) + site.bias.to(n.dtype)).to(x.dtype)


def rounding(way: str, dtype: torch.dtype = bf16) -> Norm:
    """Return a norm with one thing rounded to ``dtype``: statistics, in one of three ways, or parts as in ROUNDED."""

    def cast(tensor: Tensor, part: str) -> Tensor:
        return tensor.to(dtype).to(tensor.dtype) if part in ROUNDED.get(way, ()) else tensor

    def norm(site: ng.NormSite, x: Tensor) -> Tensor:
        c = centred(site, x)
        n = cast(c * factor(c, site.eps, c.dtype if way in ROUNDED else dtype, way), "normalised")
        y = n * cast(site.weight, "gain").to(c.dtype) + site.bias.to(c.dtype)
        return cast(y, "output").to(x.dtype)

    return norm


def with_errors(relative: Mapping[ng.NormSite, Tensor | float]) -> Norm:
    """Return the norm itself with a relative error of its scales at some sites."""
    return lambda site, x: (1 + relative.get(site, 0.0)) * unrounded(site, x)


# models whose norms can be replaced


class Network(Resumed):
    """Blocks and final norm of a model on its text or recording; ``run`` replaces its norms by a function.

    Attributes:
        model: a copy, in ``dtype``.
        example: inputs for the whole model; None for a language model.
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
        """Return outputs of blocks from ``start`` on and of the final norm, ``(windows or seconds, positions, d)``."""
        with self.norms_replaced(norm):
            return [self.measured(h).double() for h in self.ends(start)]

    def measured(self, h: Tensor) -> Tensor:
        """Select the positions that are measured, ``(windows or seconds, positions, d)``."""
        return h[:, 1:].flatten(0, 1)[: math.prod(self.shape)].unflatten(0, self.shape)

    def inputs(self) -> dict[ng.NormSite, Tensor]:
        """Return what each norm reads."""
        seen = {}

        def norm(site: ng.NormSite, x: Tensor) -> Tensor:
            seen[site] = x
            return unrounded(site, x)

        self.run(norm)
        return seen

    def predictions(self, end: Tensor) -> Tensor:
        """Return a language model's log-probabilities at every fourth position, from the output of its final norm."""
        with torch.no_grad():
            return self.model.lm_head(end[:, ::4].to(self.model.dtype)).double().log_softmax(-1)


def squared_errors(found: list[Tensor], exact: list[Tensor]) -> Tensor:
    """Return mean squared relative errors by window, ``(len(found), windows)``; ``found`` is from the last blocks."""
    rows = []
    for h, reference in zip(found, exact[-len(found) :], strict=True):
        relative = (h - reference).norm(dim=-1) / reference.norm(dim=-1)
        rows.append(relative.square().mean(-1))
    return torch.stack(rows)


def rms(found: list[Tensor], exact: list[Tensor]) -> Tensor:
    """Return the root mean square of the relative error after each block."""
    return squared_errors(found, exact).mean(-1).sqrt()


def at_the_end(network: Network, end: Tensor, reference: Network, exact: Tensor) -> dict[str, Tensor]:
    """Return the error after the final norm, and for language models divergence and agreement of the predictions."""
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
    """Round numbers to three significant digits."""
    return {key: v if isinstance(v, (str, int)) else float(f"{float(v):.3g}") for key, v in row.items()}


@experiment(
    "published-rounding",
    {
        "published-rounding": "Root mean square of the stream's relative error after each block (last row: final "
        "norm), compared with float64. All norms round what a column names to bfloat16; all else is float32. "
        "statistics: squares, mean and root; sum: partial sums too; twice: normalised vector, gain and output; "
        "coherent_…, random_…: predictions from mean and spread of the errors of scales; together, apart: error, per "
        "unit, from relative errors of all scales with equal or random signs.",
        "published-rounding-end": "The same after the final norm, and for whole models in 16 bits (with output or "
        "statistics rounded); kl: in nats; agree: same most likely token; both at every fourth position.",
        "published-rounding-speech": "The same errors for Whisper's encoder, which predicts no tokens.",
        "published-norm-inputs": "What each norm reads, position 0 too: least mean square, largest entry, longest "
        "vector, and largest share of ε. bias_…, spread_…: of its scale's relative errors with bfloat16 statistics.",
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
    """Describe what a norm reads; give mean and spread of its scales' relative error with rounded statistics."""
    c = centred(site, x).double()
    least = c.square().mean(-1).min()
    row = dict(site=site.name, dim=site.dim, eps=site.eps, least=least, largest=x.abs().max())
    row |= dict(longest=x.norm(dim=-1).max(), eps_share=site.eps / (least + site.eps))
    for way in STATISTICS:
        relative = factor(c, site.eps, bf16, way) / factor(c, site.eps, f64) - 1
        row[f"bias_{way}"], row[f"spread_{way}"] = relative.mean().item(), relative.std().item()
    return row


def predicted(network: Network, inputs: dict, read: dict) -> dict[str, Tensor]:
    """Predict the error after each block from mean and spread of the errors of all scales; return unit effects too."""
    base, generator = network.run(unrounded), torch.Generator().manual_seed(0)
    effects = {}  # squared effects after each block of errors of size 1 and random sign in one norm's scales
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
