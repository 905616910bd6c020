"""The doctor on small models: planted bugs are named one by one, sound models are left alone."""

import copy
import math

import normgeom as ng
import pytest
import torch
from tiny_models import VOCABULARY, Apply, tiny, token_ids
from torch import nn

IDS = token_ids(4, 9)
LONG = dict(initializer_range=0.2)  # vectors at the norms as long as in trained models
SOUND = ("gpt2", "llama", "gemma3", "qwen3", "bert")
LN, RMS, QUERIES = "transformer.h.0.ln_1", "model.layers.0.input_layernorm", "self_attn.q_norm"
OTHER = "statistics in 16 bits, or another formula"


def sound(family):
    """With gains as training leaves them, w from 0.8 to 1.2, or -0.2 to 0.2 where 1 is added."""
    model, generator = tiny(family, **LONG), torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 and ("norm" in name.lower() or "ln_" in name) and name.endswith("weight"):
            drawn = 0.4 * torch.rand(parameter.shape, generator=generator) - 0.2
            parameter.data = drawn if family == "gemma3" else 1 + drawn
    return model


class Mutant(nn.Module):
    """A norm with the parameters of another and a formula of its own."""

    def __init__(self, norm, formula):
        super().__init__()
        self.formula, self.eps = formula, 1e-5
        for name, parameter in norm.named_parameters():
            setattr(self, name, parameter)

    def forward(self, x):
        return self.formula(self, x)


def mean(x, axis=-1):
    return x.mean(axis, keepdim=True)


def centred(x):
    return x - mean(x)


def wide(formula):
    """In float32, with the gain w."""
    return lambda m, x: (formula(x.float()) * m.weight.float() + getattr(m, "bias", torch.zeros(()))).to(x.dtype)


def half_statistics(x):
    return x * torch.rsqrt(mean(x.bfloat16().square()).float() + 1e-5)


def across_heads(x):
    return x * torch.rsqrt(mean(x.square(), (-2, -1)) + 1e-5)


def in_its_dtype(eps):
    return lambda m, x: m.weight * x * torch.rsqrt(mean(x * x) + eps)


def with_16_bit_gain(m, x):
    return (ng.rms_norm(x.float()) * (1 + m.weight).float()).to(x.dtype)


def twice(m, x):
    return ng.rms_norm(x, 1 + m.weight.float(), unit_offset=True)


def root_sum(x, eps=1e-5):
    return (x.square().sum(-1, keepdim=True) + eps).sqrt()


def over_batch(x):
    return (x - mean(x, 0)) / (x.var(0, correction=0, keepdim=True) + 1e-5).sqrt()


# what is planted: model, norm, its formula, the problem that is named
PLANTED = {
    "statistics in the dtype of the input": ("llama", RMS, in_its_dtype(1e-5), OTHER),
    "squares in float16": ("llama", RMS, in_its_dtype(1e-5), "squares overflow"),
    "statistics always in bfloat16": ("llama", RMS, wide(half_statistics), OTHER),
    "1 + w added in bfloat16": ("gemma3", RMS, with_16_bit_gain, "1 + w in 16 bits"),
    "1 + w twice, in code": ("gemma3", RMS, twice, "the gain is 2 + w"),
    "ε outside the root": (
        "gpt2",
        LN,
        wide(lambda x: centred(x) / (mean(centred(x).square()).sqrt() + 1e-3)),
        "ε acts as 0.001 (outside the root)",
    ),
    "ε after the division": (
        "llama",
        RMS,
        wide(lambda x: x * (torch.rsqrt(mean(x * x)) + 1e-5)),
        "ε acts as 1e-05 (after the division)",
    ),
    "ε added to the sum": (
        "llama",
        RMS,
        wide(lambda x: 32**0.5 * x / root_sum(x)),
        "ε acts as 3.1e-07 (inside the root)",
    ),
    "ε too large": ("qwen3", QUERIES, lambda m, x: ng.rms_norm(x, m.weight, eps=10.0), "ε dominates"),
    "variance over d − 1": (
        "gpt2",
        LN,
        wide(lambda x: centred(x) / (x.var(-1, keepdim=True) + 1e-5).sqrt()),
        "the gain is neither w nor 1 + w",
    ),
    "sum for mean": ("qwen3", QUERIES, wide(lambda x: x / root_sum(x)), "the gain is neither w nor 1 + w"),
    "queries across heads": ("qwen3", QUERIES, wide(across_heads), "the result depends on other vectors"),
    "statistics of the batch": ("gpt2", LN, wide(over_batch), "the result depends on other vectors"),
    "absolute deviation": (
        "gpt2",
        LN,
        wide(lambda x: centred(x) / mean(centred(x).abs())),
        OTHER,
    ),
}


def plant(model, name, formula):
    parent, _, last = name.rpartition(".")
    norm = model.get_submodule(name)
    setattr(model.get_submodule(parent), last, Mutant(norm, formula))


def problems(report):
    return {(finding.site, finding.problem) for finding in report}


@pytest.mark.parametrize("family", SOUND)
def test_sound_models_have_no_problem_in_any_dtype(family):
    model = sound(family)
    before, report = copy.deepcopy(model.state_dict()), ng.doctor(model, IDS)
    assert list(report) == [], "a sound model is blamed"
    assert ng.doctor(copy.deepcopy(model).bfloat16(), IDS) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "weights changed"
    sites = ng.find_norms(model, IDS)
    assert [(s.name, s.kind, s.dim, s.eps) for s in report.norms] == [(s.name, s.kind, s.dim, s.eps) for s in sites]


@pytest.mark.parametrize("family, site, formula, problem", PLANTED.values(), ids=PLANTED)
def test_planted_bugs_are_named_where_they_are(family, site, formula, problem):
    model = sound(family)
    site = f"model.layers.1.{site}" if site == QUERIES else site
    plant(model, site, formula)
    found = problems(ng.doctor(model, IDS))
    assert (site, problem) in found
    assert {where for where, _ in found} == {site}, "blamed elsewhere"


class AddsOne(nn.RMSNorm):
    def forward(self, x):
        return ng.rms_norm(x, self.weight, eps=self.eps, unit_offset=True)


class Counts(nn.Module):
    """A language model that knows the next token: one more than the last.  ``gains`` are what its parts expect."""

    def __init__(self, kind, stored, gains):
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(nn.functional.normalize(torch.randn(VOCABULARY, 256)))
        self.norms = nn.Sequential(*(kind(256, eps=1e-6) for _ in stored))
        for norm, w in zip(self.norms, stored, strict=True):
            norm.weight.data = w
        self.head = nn.Linear(256, VOCABULARY, bias=False)
        self.head.weight.data = 0.6 * self.embed.weight.roll(1, 0) / math.prod(gains)

    def forward(self, ids):
        output = Apply(None)  # anything with an attribute
        output.logits = self.head(self.norms(self.embed(ids)))
        return output


# the class of two norms, their weights, what their gains should be, and what is named
W = torch.rand(256, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.05
SIGNS = 1 - 2.0 * (torch.arange(256) % 2)
CONVENTIONS = {
    "right": (nn.RMSNorm, (W, SIGNS), (W, SIGNS), None),  # half are negative, as where 1 is added
    "1 + w forgotten": (nn.RMSNorm, (W, W), (1 + W, 1 + W), ("norms.0 and 1 more", "1 + w forgotten")),
    "forgotten at the last": (nn.RMSNorm, (SIGNS, W), (SIGNS, 1 + W), ("norms.1", "1 + w forgotten")),
    "1 + w applied": (AddsOne, (SIGNS * W, W), (SIGNS * W, W), ("norms.0 and 1 more", "1 + w applied to gains")),
}


@pytest.mark.parametrize("kind, stored, gains, named", CONVENTIONS.values(), ids=CONVENTIONS)
def test_where_a_model_predicts_its_inputs_its_loss_judges_the_gain(kind, stored, gains, named):
    model, ids = Counts(kind, stored, gains), torch.arange(40).view(2, 20) % VOCABULARY

    @torch.no_grad()
    def loss(model):
        logits = model(ids).logits
        return float(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))

    found = {(finding.site, finding.problem): finding.size for finding in ng.doctor(model, ids)}
    if named is None:
        assert not found
        return
    right = copy.deepcopy(model)
    for norm, gain in zip(right.norms, gains, strict=True):
        norm.weight.data = gain - int(kind is AddsOne)
    assert found[named] == pytest.approx(loss(model) - loss(right), rel=1e-3) and found[named] > 1
    assert all(torch.equal(norm.weight, w) for norm, w in zip(model.norms, stored, strict=True)), "weights changed"


def effect(family, site, formula, inputs=IDS):
    model = sound(family)
    plant(model, site, formula)
    report, rows = ng.doctor(model, inputs), []
    with torch.no_grad(), ng.watch(model, [site], lambda _, x, y: rows.append(x.double())):
        model(inputs)
    return {finding.problem: finding.size for finding in report}, rows[0].flatten(0, -2)


def test_effects_are_those_that_follow():
    """The numbers of findings, from the rows that the norm reads, by formulas of their own."""
    sizes, x = effect("llama", RMS, wide(lambda x: ng.rms_norm(x, eps=0.05)))
    kept = (x.square().mean(-1) / (x.square().mean(-1) + 0.05)).sqrt()
    assert sizes["ε dominates"] == pytest.approx(float(1 - kept.median()), rel=1e-3)
    sizes, x = effect(*PLANTED["ε outside the root"][:3])
    s = float((x - x.mean(-1, keepdim=True)).square().mean(-1).sqrt().median())
    ratio = s / (s + 1e-3) / (s / math.sqrt(s * s + 1e-5))
    assert sizes["ε acts as 0.001 (outside the root)"] == pytest.approx(abs(ratio - 1), rel=0.05)
    sizes, x = effect(*PLANTED["squares in float16"][:3])
    assert sizes["squares overflow"] == pytest.approx(float(x.abs().max()))
    assert 0.1 < sizes[OTHER] < 1
    sizes, _ = effect(*PLANTED["1 + w added in bfloat16"][:3])
    assert 2**-10 < sizes["1 + w in 16 bits"] <= 2**-8, "one rounding of a number near 1"


def test_what_a_sheet_says():
    report = ng.doctor(sound("gpt2"), IDS)
    sheet = report.norms[0]
    assert (sheet.gain, sheet.place, sheet.casts) == ("w", "inside the root", "after the gain")
    assert sheet.decays == ["plain AdamW", "names"], "GPT-2 calls its norms ln, a rule by shapes spares them"
    assert ng.doctor(sound("llama"), IDS).norms[0].casts == "before the gain"
    gemma = ng.doctor(sound("gemma3"), IDS).norms
    assert {(s.gain, s.casts, tuple(s.decays)) for s in gemma} == {("1 + w", "after the gain", ("plain AdamW",))}
    cohere = ng.doctor(tiny("cohere_qk", **LONG), IDS).norms[1]
    assert cohere.decays == ["plain AdamW", "shapes"], "a gain for each head is no vector"
    (plain,) = ng.doctor(nn.Sequential(nn.LayerNorm(8, elementwise_affine=False)), torch.randn(3, 5, 8)).norms
    assert (plain.gain, plain.w, plain.decays) == ("none", None, [])
    massive = ng.doctor(nn.Sequential(nn.RMSNorm(8, eps=1e-6)), 100 * torch.eye(8)[:3] + 30 * torch.ones(3, 8)).norms[0]
    assert massive.measured["share"] == pytest.approx(130**2 / (130**2 + 7 * 30**2))


def test_last_bits_that_depend_on_the_batch():
    model = sound("llama")
    plant(model, RMS, wide(lambda x: ng.rms_norm(x if len(x) == 1 else x * (1 + 1e-6), eps=1e-5)))
    (finding,) = ng.doctor(model, IDS)
    assert finding.problem == "the result depends on other vectors" and 1e-8 < finding.size < 1e-5


def test_refusals_are_one_line():
    model = sound("llama")
    for wrong, error, message in (
        ((nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.ones(2, 4)), ValueError, "^model: expected one that runs n"),
        (
            (nn.Sequential(Apply(lambda x: ng.head_norm(x, 4))), torch.ones(2, 5, 32)),
            ValueError,
            "^model: expected one t",
        ),
        ((model.state_dict(),), TypeError, "^model: expected a torch.nn.Module, got a "),
        ((nn.LayerNorm(4),), TypeError, "^example_inputs: none given"),
    ):
        with pytest.raises(error, match=message):
            ng.doctor(*wrong)
    model.model.norm.weight.data[3] = math.nan
    with pytest.raises(ValueError, match=r"NaN or Inf in 1, the first 'model\.norm\.weight'$"):
        ng.doctor(model, IDS)
