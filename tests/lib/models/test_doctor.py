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
LN, RMS, FINAL, QUERIES = "transformer.h.0.ln_1", "model.layers.0.input_layernorm", "model.norm", "self_attn.q_norm"


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


def moments(x):
    return (x - mean(x)) / (mean(x * x) - mean(x) ** 2 + 1e-5).abs().sqrt()


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
    "statistics in the dtype of the input": ("llama", RMS, in_its_dtype(1e-5), "statistics in 16 bits"),
    "squares in float16": ("llama", RMS, in_its_dtype(1e-5), "squares overflow"),
    "statistics always in bfloat16": ("llama", RMS, wide(half_statistics), "statistics in 16 bits"),
    "1 + w added in bfloat16": ("gemma3", RMS, with_16_bit_gain, "1 + w in 16 bits"),
    "1 + w twice, in code": ("gemma3", RMS, twice, "the gain is 2 + w"),
    "1 + w forgotten at the last norm": ("gemma3", FINAL, wide(ng.rms_norm), "1 + w forgotten"),
    "ε outside the root": (
        "gpt2",
        LN,
        wide(lambda x: centred(x) / (mean(centred(x).square()).sqrt() + 1e-3)),
        "ε = 0.001 acts outside the root",
    ),
    "ε after the division": (
        "llama",
        RMS,
        wide(lambda x: x * (torch.rsqrt(mean(x * x)) + 1e-5)),
        "ε = 1e-05 acts after the division",
    ),
    "ε added to the sum": ("llama", RMS, wide(lambda x: 32**0.5 * x / root_sum(x)), "ε acts as 3.1e-07"),
    "ε too large": ("qwen3", QUERIES, lambda m, x: ng.rms_norm(x, m.weight, eps=10.0), "ε dominates"),
    "no ε": ("llama", RMS, wide(lambda x: x * torch.rsqrt(mean(x * x))), "rows of zeros give NaN"),
    "ε lost in float16": ("llama", RMS, in_its_dtype(1e-8), "rows of zeros give NaN"),
    "variance over d − 1": (
        "gpt2",
        LN,
        wide(lambda x: centred(x) / (x.var(-1, keepdim=True) + 1e-5).sqrt()),
        "outputs are not √d long",
    ),
    "sum for mean": ("qwen3", QUERIES, wide(lambda x: x / root_sum(x)), "outputs are not √d long"),
    "queries across heads": ("qwen3", QUERIES, wide(across_heads), "the result depends on other vectors"),
    "statistics of the batch": ("gpt2", LN, wide(over_batch), "the result depends on other vectors"),
    "mean of squares less squared mean": ("gpt2", LN, wide(moments), "digits lost to the mean"),
    "absolute deviation": (
        "gpt2",
        LN,
        wide(lambda x: centred(x) / mean(centred(x).abs())),
        "neither LayerNorm nor RMSNorm",
    ),
}


def plant(model, name, formula):
    parent, _, last = name.rpartition(".")
    norm = model.get_submodule(name)
    setattr(model.get_submodule(parent), last, Mutant(norm, formula))


def problems(report):
    return {(finding.site, finding.problem) for finding in report if not finding.note}


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


# convention and gains of all norms, and what is said
GAINS = {
    "weights of 1 + w without the 1": ("llama", -1.0, "1 + w forgotten"),
    "gains where 1 is added": ("gemma3", 1.0, "1 + w applied to gains"),
}


@pytest.mark.parametrize("family, added, problem", GAINS.values(), ids=GAINS)
def test_a_convention_that_the_weights_contradict(family, added, problem):
    model = sound(family)
    sites = ng.find_norms(model, IDS)
    for site in sites:
        site.module.weight.data += added
    (finding,) = ng.doctor(model, IDS)
    assert (finding.site, finding.problem) == (f"{sites[0].name} and {len(sites) - 1} more", problem)
    w = torch.cat([site.module.weight.data for site in sites])
    gain, other = (w, 1 + w) if family == "llama" else (1 + w, w)
    assert finding.size == pytest.approx(float(gain.norm() / other.norm()), rel=1e-4)


class Counts(nn.Module):
    """A language model that knows the next token: one more than the last.  ``gains`` are what its head expects."""

    def __init__(self, stored, gains):
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(nn.functional.normalize(torch.randn(VOCABULARY, 256)))
        self.norm = nn.RMSNorm(256, eps=1e-6)
        self.norm.weight.data = stored
        self.head = nn.Linear(256, VOCABULARY, bias=False)
        self.head.weight.data = 0.6 * self.embed.weight.roll(1, 0) / gains

    def forward(self, ids):
        output = Apply(None)  # anything with an attribute
        output.logits = self.head(self.norm(self.embed(ids)))
        return output


@pytest.mark.parametrize("forgotten", [False, True])
def test_where_a_model_predicts_its_inputs_its_loss_judges_the_gain(forgotten):
    """All weights are positive where the 1 is forgotten, a third is negative where it is not: signs would mislead."""
    w = torch.rand(256) * 0.2 + 0.05
    gains = 1 + w if forgotten else torch.where(torch.arange(256) % 3 == 0, -1.0, 1.0)
    model, ids = Counts(w if forgotten else gains, gains), torch.arange(40).view(2, 20) % VOCABULARY

    @torch.no_grad()
    def loss(model):
        logits = model(ids).logits
        return float(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))

    report = ng.doctor(model, ids)
    if not forgotten:
        assert report == []
        return
    (finding,) = report
    assert finding.problem == "1 + w forgotten"
    assert finding.size == pytest.approx(loss(model) - loss(Counts(1 + w, gains)), rel=0.1) and finding.size > 1


def effect(family, site, formula, inputs=IDS):
    model = sound(family)
    plant(model, site, formula)
    report, rows = ng.doctor(model, inputs), []
    with torch.no_grad(), ng.watch(model, [site], lambda _, x, y: rows.append(x.double())):
        model(inputs)
    return {finding.problem: finding.size for finding in report}, rows[0].flatten(0, -2)


def test_effects_are_those_that_follow():
    """The numbers of findings, from the rows that the norm reads, by formulas of their own."""
    sizes, _ = effect(*PLANTED["variance over d − 1"][:3])
    assert sizes["outputs are not √d long"] == pytest.approx(1 - math.sqrt(31 / 32), rel=1e-3)
    sizes, x = effect("llama", RMS, wide(lambda x: ng.rms_norm(x, eps=0.05)))
    kept = (x.square().mean(-1) / (x.square().mean(-1) + 0.05)).sqrt()
    assert sizes["ε dominates"] == pytest.approx(float(1 - kept.median()), rel=1e-3)
    sizes, x = effect(*PLANTED["ε outside the root"][:3])
    s = float((x - x.mean(-1, keepdim=True)).square().mean(-1).sqrt().median())
    ratio = s / (s + 1e-3) / (s / math.sqrt(s * s + 1e-3))
    assert sizes["ε = 0.001 acts outside the root"] == pytest.approx(abs(ratio - 1), rel=0.05)
    sizes, x = effect(*PLANTED["squares in float16"][:3])
    assert sizes["squares overflow"] == pytest.approx(float(x.abs().max()))
    assert 5e-4 < sizes["statistics in 16 bits"] < 2**-7, "one rounding of the mean square and one of the scale"
    sizes, _ = effect(*PLANTED["1 + w added in bfloat16"][:3])
    assert 2**-10 < sizes["1 + w in 16 bits"] <= 2**-8, "one rounding of a number near 1"


def test_what_a_sheet_says():
    report = ng.doctor(sound("gpt2"), IDS)
    sheet = report.norms[0]
    assert (sheet.gain, sheet.place, sheet.casts, sheet.scope) == ("w", "inside the root", "after the gain", "vector")
    assert sheet.decays == ("names",), "GPT-2 calls its norms ln, a rule by shapes spares them"
    assert ng.doctor(sound("llama"), IDS).norms[0].casts == "before the gain"
    gemma = ng.doctor(sound("gemma3"), IDS).norms
    assert {(s.gain, s.casts, s.decays) for s in gemma} == {("1 + w", "after the gain", ())}
    assert {s.scope for s in gemma if "q_norm" in s.name} == {"head"}
    cohere = ng.doctor(tiny("cohere_qk", **LONG), IDS).norms[1]
    assert (cohere.scope, cohere.decays) == ("head", ("shapes",)), "a gain for each head is no vector"
    grouped = Apply(lambda x: ng.head_norm(x, 4))
    (sheet,) = ng.doctor(nn.Sequential(grouped), torch.randn(3, 5, 32)).norms
    assert (sheet.scope, sheet.gain) == ("groups of 8", "none")


def test_notes_are_no_problems():
    model = sound("llama")
    model.model.embed_tokens.weight.data[:, 5] = 40.0
    report = ng.doctor(model, IDS)
    assert problems(report) == set() and report[0].problem == "one entry holds most of the length"
    x = model.model.embed_tokens(IDS).detach()
    share = float((x.square().amax(-1) / x.square().sum(-1)).median())
    assert report[0].size == pytest.approx(math.sqrt(share / (1 - share) * 31) / 127, rel=0.01)
    plant(model, RMS, wide(lambda x: ng.rms_norm(x if len(x) == 1 else x * (1 + 1e-6))))
    assert "last bits depend on the batch" in {finding.problem for finding in ng.doctor(model, IDS) if finding.note}
    with pytest.warns(UserWarning, match="not measured"):
        ng.find_norms(tiny("mamba2"))
    (note, _) = ng.doctor(tiny("mamba2", **LONG))
    assert note.note and (note.site, note.problem) == ("backbone.layers.0.mixer.norm", "not examined")


def test_refusals_are_one_line():
    model = sound("llama")
    for wrong, error, message in (
        ((nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.ones(2, 4)), ValueError, "^model: expected one that runs n"),
        ((model, torch.full((1, 3), VOCABULARY)), ValueError, "^inputs: this LlamaForCausalLM cannot read them"),
        ((model, "text"), ValueError, "^inputs: this LlamaForCausalLM cannot read them"),
        ((model.state_dict(),), TypeError, "^model: expected a torch.nn.Module, got a "),
        ((nn.LayerNorm(4),), TypeError, "^example_inputs: none given"),
    ):
        with pytest.raises(error, match=message):
            ng.doctor(*wrong)
    model.model.norm.weight.data[3] = math.nan
    with pytest.raises(ValueError, match=r"NaN or Inf in 1, the first 'model\.norm\.weight'$"):
        ng.doctor(model, IDS)
