"""Rounding inside the norms of published models by depth, with a prediction, and of what norms pass on to matrices."""

import copy
from functools import cache, reduce
from itertools import product

import normgeom as ng
import torch
from normgeom.models.watch import forward, hooked
from torch import Tensor
from transformers import WhisperForConditionalGeneration

from experiments.models import FOLDER, spectrogram
from experiments.real_models import LANGUAGE, SPEECH, about, blocks, language_model, resampled
from experiments.registry import experiment

WHISPER, RECORDING, SECONDS, BLOCKS, LENGTH = "whisper-base", "synthetic-test-1", 23, 20, 17
MODELS = (*LANGUAGE, WHISPER)
SHIFT = 2.0**-9  # of a scale, where its effect is measured
CORPUS = (
    f"WikiText-2 (test), {BLOCKS} windows of {LENGTH} tokens begun by BOS; Whisper's encoder: {SECONDS} s of espeak-ng "
    "reading sentences of WikiText-2, by seconds; position 0 left out; low, high: 90 % of resampled windows or seconds"
)
bf16, fp16, f64 = torch.bfloat16, torch.float16, torch.float64
READERS = {  # of a norm, by its name in its block
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn_layer_norm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "pre_feedforward_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),  # of Llama; Gemma's writes to the stream
    "final_layer_norm": ("fc1",),
}


def centred(site: ng.NormSite, x: Tensor) -> Tensor:
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


def rounding(way: str = "", dtype: torch.dtype = bf16):
    """A norm that computes in at least float32 and rounds one thing to ``dtype``; its result has the input's format."""
    cast = lambda t, *ways: t.to(dtype).to(t.dtype) if way in ways else t  # noqa: E731

    def norm(site: ng.NormSite, x: Tensor) -> Tensor:
        c = centred(site, x)
        n = c * factor(c, site.eps, dtype if way in ("statistics", "sum", "scaled") else c.dtype, way)
        y = cast(n, "twice") * cast(site.weight, "gain", "twice").to(c.dtype) + site.bias.to(c.dtype)
        return cast(y, "output", "twice").to(x.dtype)

    return norm


class Stack:
    """Blocks and last norm of a model on one input, its norms computed by what ``run`` is given."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32):
        if name == WHISPER:
            whole = WhisperForConditionalGeneration.from_pretrained(FOLDER / name).eval()
            features = spectrogram(FOLDER / name, SPEECH / f"{RECORDING}.wav")
            example = dict(input_features=features, decoder_input_ids=torch.tensor([[whole.config.bos_token_id]]))
            part, inputs, self.parts = "model.encoder", dict(input_features=features.to(dtype)), (SECONDS, 50)
        else:
            (whole, tokenizer), example = language_model(name), None
            inputs = dict(input_ids=blocks(tokenizer, "test", BLOCKS, LENGTH), use_cache=False)
            part, self.parts = "model", (BLOCKS, LENGTH - 1)
        self.model = copy.deepcopy(whole).to(dtype)
        inner, self.calls = self.model.get_submodule(part), []
        self.blocks = [*inner.layers, inner.layer_norm if name == WHISPER else inner.norm]
        sites = [site for site in ng.find_norms(whole, example) if site.name.startswith(part)]
        self.modules = {site: self.model.get_submodule(site.name) for site in sites}
        at = {module: number for number, block in enumerate(self.blocks) for module in block.modules()}
        self.block = {site: at[module] for site, module in self.modules.items()}
        keep = lambda _module, args, kwargs: self.calls.append((args, kwargs))  # noqa: E731
        with self._norms(rounding()), hooked(before=[(block, keep) for block in self.blocks]):
            forward(inner, inputs)

    def _norms(self, norm):
        instead = lambda site: lambda _module, args, _kwargs, _output: norm(site, args[0])  # noqa: E731
        return hooked(after=[(module, instead(site)) for site, module in self.modules.items()])

    @torch.no_grad()
    def run(self, norm, start: int = 0) -> list[Tensor]:
        """What leaves each block from ``start`` on, and the last norm, ``(parts, positions, d)``."""
        h, ends = self.calls[start][0][0], []
        with self._norms(norm):
            for block, (args, kwargs) in zip(self.blocks[start:], self.calls[start:], strict=True):
                h = block(h, *args[1:], **kwargs)
                ends.append(self.cut(h).double())
        return ends

    def cut(self, h: Tensor) -> Tensor:
        return h[:, 1:].flatten(0, 1)[: self.parts[0] * self.parts[1]].unflatten(0, self.parts)

    def inputs(self) -> dict[ng.NormSite, Tensor]:
        seen = {}
        self.run(lambda site, x: (seen.update({site: x}), rounding()(site, x))[1])
        return seen

    def readers(self, site: ng.NormSite) -> Tensor | None:
        """The matrices that read a norm, stacked."""
        block, name = self.blocks[self.block[site]], site.name.rpartition(".")[2]
        if name not in READERS or (name.startswith("post") and hasattr(block, "pre_feedforward_layernorm")):
            return None
        return torch.cat([block.get_submodule(reader).weight for reader in READERS[name]]).detach()


def off(got: list[Tensor], exact: list[Tensor]) -> Tensor:
    """Mean squared relative error of each part, ``(len(got), parts)``: of the last of the blocks."""
    pairs = zip(got, exact[-len(got) :], strict=True)
    return torch.stack(
        [((h.nan_to_num(0, 0, 0) - e).norm(dim=-1) / e.norm(dim=-1)).square().mean(-1) for h, e in pairs]
    )


def compared(of: Stack, h: Tensor, exact_of: Stack, exact: Tensor) -> dict[str, Tensor]:
    """Error of what leaves the last norm, divergence and agreement of what a language model then predicts."""
    (error,), generator = off([h], [exact]), torch.Generator().manual_seed(0)
    low, high = resampled(error, generator)
    found = dict(error=error.mean().sqrt(), low=low.sqrt(), high=high.sqrt())
    if hasattr(of.model, "lm_head"):
        with torch.no_grad():
            heads = ((of, h.nan_to_num(0, 0, 0)), (exact_of, exact))
            q, p = (s.model.lm_head(x[:, ::4].to(s.model.dtype)).double().log_softmax(-1) for s, x in heads)
        kl = (p.exp() * (p - q)).sum(-1).mean(-1)
        found |= dict(kl=kl.mean(), agree=(p.argmax(-1) == q.argmax(-1)).double().mean())
        found |= dict(zip(("kl_low", "kl_high"), resampled(kl, generator), strict=True))
    return found


def short(row: dict) -> dict:
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
    corpus=CORPUS,
    **about(*MODELS),
)
def by_depth(model: str) -> dict[str, list[dict]]:
    generator = torch.Generator().manual_seed(0)
    reference, of = Stack(model, f64), Stack(model)
    exact, base, inputs, wrong, sites = reference.run(rounding()), of.run(rounding()), of.inputs(), {}, []
    for site, x in inputs.items():
        c = centred(site, x).double()
        square, row = c.square().mean(-1), dict(site=site.name, dim=site.dim, eps=site.eps)
        row |= dict(least=square.min(), largest=x.abs().max(), longest=x.norm(dim=-1).max())
        row |= dict(eps_share=site.eps / (square.min() + site.eps))
        for way in ("statistics", "sum"):
            relative = factor(c, site.eps, bf16, way) / factor(c, site.eps, f64) - 1
            wrong[way, site] = row[f"bias_{way}"], row[f"spread_{way}"] = relative.mean().item(), relative.std().item()
        sites.append(short(row))
    shifted = lambda by: lambda site, x: (1 + by.get(site, 0.0)) * rounding()(site, x)  # noqa: E731
    effects = {}
    for site, x in inputs.items():
        signs = torch.randint(2, (*x.shape[:-1], 1), generator=generator) * 2.0 - 1
        effect = off(of.run(shifted({site: SHIFT * signs}), of.block[site]), base).mean(-1) / SHIFT**2
        effects[site] = torch.cat([torch.zeros(len(base) - len(effect)), effect])
    ends = {way: of.run(rounding(way)) for way in ("statistics", "sum", "output", "twice", "gain")}
    columns = {way: off(got, exact).mean(-1).sqrt() for way, got in ends.items()}
    for way in ("statistics", "sum"):
        mean = {site: wrong[way, site][0] for site in inputs}
        columns[f"coherent_{way}"] = off(of.run(shifted(mean)), base).mean(-1).sqrt()
        columns[f"random_{way}"] = sum(wrong[way, site][1] ** 2 * effect for site, effect in effects.items()).sqrt()
    columns["together"] = off(of.run(shifted(dict.fromkeys(inputs, SHIFT))), base).mean(-1).sqrt() / SHIFT
    columns["apart"] = sum(effects.values()).sqrt()
    last = [dict(way=way) | compared(of, got[-1], reference, exact[-1]) for way, got in ends.items()]
    for dtype, way in product((bf16, fp16), ("output", "statistics", "scaled")):
        whole = Stack(model, dtype)
        got = whole.run(rounding(way, dtype))[-1]
        last.append(dict(way=f"{str(dtype)[6:]} model, {way}") | compared(whole, got, reference, exact[-1]))
    return {
        "published-rounding": [
            dict(block=i + 1) | short({k: v[i] for k, v in columns.items()}) for i in range(len(base))
        ],
        "published-rounding-end": [short(row) for row in last if "kl" in row],
        "published-rounding-speech": [short(row) for row in last if "kl" not in row],
        "published-norm-inputs": sites,
    }


@cache
def turned(d: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(0)))[0]


def quantised(y: Tensor, bits: int) -> Tensor:
    """Each row rounded to steps of its largest entry over 2^(bits − 1) − 1."""
    step = y.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (y / step).round() * step


@experiment(
    "published-quantised",
    {
        "published-quantised": "What each norm passes on to the matrices that read it, rounded to 8 or 4 bits by rows "
        "(step: largest entry over 127 or 7): as trained, with the gain folded into the matrices, and turned by a "
        "random rotation too.  Medians over norms: crest, largest entry over root mean square; share, of the largest "
        "coordinate in the normalised vector's square length; measured, relative error of what the matrices compute; "
        "predicted; ratio_…: measured over predicted, quantiles over norms.",
        "published-quantised-end": "Where all these norms are quantised at once, against float32: error behind the "
        "last norm, KL in nats, share of positions with the same likeliest token (every fourth).",
    },
    dict(model=MODELS),
    minutes=4,
    workers=1,
    corpus=CORPUS,
    **about(*MODELS),
)
def int8_and_int4(model: str) -> dict[str, list[dict]]:
    of = Stack(model)
    inputs, base, rows, last = of.inputs(), of.run(rounding())[-1], [], []
    read = {site: matrices for site in inputs if (matrices := of.readers(site)) is not None}
    for form, bits in product(("as trained", "folded", "rotated"), (8, 4)):
        q = turned(base.shape[-1]) if form == "rotated" else torch.eye(base.shape[-1])
        found = []
        for site, w in read.items():
            n = centred(site, of.cut(inputs[site])).flatten(0, 1)
            n = n * factor(n, site.eps, n.dtype)
            y = n * site.weight + site.bias
            given, through = (y, w) if form == "as trained" else (n @ q, (w * site.weight) @ q)
            length, top = (y @ w.T).norm(dim=-1), given.abs().amax(-1)
            error = ((quantised(given, bits) - given) @ through.T).norm(dim=-1) / length
            predicted = top / (2 ** (bits - 1) - 1) / 12**0.5 * through.norm() / length
            measured, predicted = (e.square().mean().sqrt() for e in (error, predicted))
            share, crest = n.square().amax(-1) / n.square().sum(-1), top / given.square().mean(-1).sqrt()
            found.append(torch.stack([crest.median(), share.median(), measured, predicted, measured / predicted]))
        columns = torch.stack(found)
        row = dict(zip(("crest", "share", "measured", "predicted", "ratio_q50"), columns.median(0).values, strict=True))
        row |= {f"ratio_q{at:02d}": columns[:, -1].quantile(at / 100) for at in (5, 95)}

        def norm(site: ng.NormSite, x: Tensor, form: str = form, bits: int = bits, q: Tensor = q) -> Tensor:
            n = centred(site, x)
            n = n * factor(n, site.eps, n.dtype)
            if site in read and form == "as trained":
                return quantised(n * site.weight + site.bias, bits)
            return (quantised(n @ q, bits) @ q.T if site in read else n) * site.weight + site.bias

        rows.append(dict(form=form, bits=bits) | short(row))
        last.append(dict(form=form, bits=bits) | short(compared(of, of.run(norm)[-1], of, base)))
    return {
        "published-quantised": rows,
        "published-quantised-end": [row for row in last if "kl" in row],
    }
