"""Held scales: norms are the affine maps of their formula, and nothing of them is left in second derivatives."""

import copy

import normgeom as ng
import pytest
import torch
from normgeom.models import held
from normgeom.models.flow import double_throughout
from surgery_models import uneven
from tiny_models import tiny, token_ids
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

IDS, OTHERS = token_ids(3, 7), token_ids(3, 7, seed=1)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3", "stablelm", "cohere_qk", "qwen3"])
def test_every_norm_divides_by_the_scales_of_the_run(family):
    """Gain, bias and kind as its source has them; norms of queries and keys among them."""
    model, first, second = uneven(family), {}, {}
    norms = [name for name, m in model.named_modules() if type(m).__name__.endswith("Norm") and hasattr(m, "weight")]
    with double_throughout(), torch.no_grad():
        live = model(OTHERS).logits
        with ng.watch(model, norms, lambda name, x, y: first.update({name: x})):
            logits = model(IDS).logits
        with ng.held_scales(model, IDS):
            assert (model(IDS).logits - logits).abs().max() < 1e-11 * logits.abs().max()
            with ng.watch(model, norms, lambda name, x, y: second.update({name: (x, y)})):
                assert (model(OTHERS).logits - live).abs().max() > 1e-3 * live.abs().max()
        assert torch.equal(model(OTHERS).logits, live), "held no longer"
        for name, (x, y) in second.items():
            module = model.get_submodule(name)
            eps = getattr(module, "eps", None) or module.variance_epsilon
            gain, bias = module.weight + (family == "gemma3"), getattr(module, "bias", None)
            if family in ("gpt2", "stablelm", "cohere_qk"):
                x, first[name] = (v - v.mean(-1, keepdim=True) for v in (x, first[name]))
            expected = gain * x / (first[name].square().mean(-1, keepdim=True) + eps).sqrt()
            expected = expected if bias is None else expected + bias
            assert (y - expected).abs().max() < 1e-12 * expected.abs().max(), name
    assert len(second) == len(norms)


class Linear(nn.Module):
    """A stream whose only nonlinear maps are norms: two branches, one after the other, each of norm, map, norm."""

    def __init__(self, norm):
        super().__init__()
        self.norms = nn.ModuleList(norm(16) for _ in range(5))
        self.maps = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for i in (0, 1):
            x = x + self.norms[2 * i + 1](self.maps[i](self.norms[2 * i](x)))
        return self.maps[2](self.norms[4](x))


def curvature(function, x, direction):
    """The second derivative of a sum of logits along a direction, relative to the first."""
    x = x.clone().requires_grad_()
    weights = torch.linspace(0.5, 1, 16, dtype=x.dtype)
    (gradient,) = torch.autograd.grad((function(x) * weights[: function(x).shape[-1]]).sum(), x, create_graph=True)
    if not gradient.requires_grad:
        return 0.0, gradient  # the first derivative depends on nothing
    (second,) = torch.autograd.grad((gradient * direction).sum(), x, allow_unused=True)
    gradient = gradient.detach()
    return 0.0 if second is None else float(second.abs().max() / gradient.abs().max()), gradient


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, ng.LayerNorm, ng.RMSNorm])
def test_nothing_is_left_of_norms_in_second_derivatives(norm, monkeypatch):
    model, (x, v) = Linear(norm).double(), torch.randn(2, 4, 5, 16, dtype=torch.float64)
    live, live_gradient = curvature(model, x, v)
    assert live > 1e-2
    with ng.held_scales(model, x):
        bent, gradient = curvature(model, x, v)
        assert bent == 0
        assert (gradient - live_gradient).abs().max() > 1e-2 * gradient.abs().max(), "the rule of another gradient"
    found = held.find_norms
    for leaky in range(5):  # a hold that misses one norm is caught
        monkeypatch.setattr(
            held, "find_norms", lambda *given, leaky=leaky: found(*given)[:leaky] + found(*given)[leaky + 1 :]
        )
        with ng.held_scales(model, x):
            assert curvature(model, x, v)[0] > 1e-3


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox"])
def test_a_transformer_without_its_other_nonlinear_maps(family):
    """Activations are the identity and attention writes zeros: what is left is a linear map of the embeddings."""
    activation = {"gpt2": "activation_function", "opt": "activation_function", "gpt_neox": "hidden_act"}[family]
    model = tiny(family, **{activation: "linear", "attn_implementation": "eager"}).double()
    for name, parameter in model.named_parameters():
        if any(end in name for end in ("attn.c_proj", "out_proj", "attention.dense")):
            parameter.data.zero_()
    x, v = torch.randn(2, 3, 7, 32, dtype=torch.float64)
    run = lambda x: model(inputs_embeds=x).logits[..., :16]  # noqa: E731
    assert curvature(run, x, v)[0] > 1e-3
    with ng.held_scales(model, {"inputs_embeds": x}):
        assert curvature(run, x, v)[0] < 1e-14


def test_refused():
    model = tiny("gpt2")
    with ng.held_scales(model, IDS):
        said = r"^held_scales: transformer.h.0.ln_1 was held for vectors of shape \(3, 7, 32\), and got \(3, 6, 32\)$"
        with pytest.raises(ValueError, match=said):
            model(IDS[:, 1:])
    assert model(IDS[:, 1:]).logits.shape == (3, 6, 64)
    with (
        pytest.raises(ValueError, match=r"^model: this Linear runs no LayerNorm or RMSNorm$"),
        ng.held_scales(nn.Linear(3, 3), torch.ones(2, 3)),
    ):
        pass


def test_hooks_that_were_there_before_see_held_outputs():
    model, seen = tiny("llama"), []
    norm, other = model.model.layers[0].input_layernorm, IDS.flip(0)
    handle = norm.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    with ng.held_scales(model, IDS):
        model(other)
    handle.remove()
    (first, _), (x, y) = seen[-2:]  # of the run on IDS, and of that in the block
    s = (first.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    assert (y - norm.weight * x / s).abs().max() < 1e-6 < (y - norm(x)).abs().max()


def test_a_copy_is_not_held_and_total_effects_are():
    """Attribution in the block: the stream is found by a copy, and parts are replaced under held scales."""
    model = tiny("llama")
    live = ng.attribute(model, IDS, 5, 6)
    with ng.held_scales(model, IDS):
        table = ng.attribute(model, IDS, 5, 6)
    for column in ("credit", "direct", "kappa"):
        assert (table[column] - live[column]).abs().max() < 1e-6
    assert (table.total - live.total).abs().max() > 1e-4


def test_a_norm_that_runs_twice_has_the_scales_of_each_call():
    norm, x = nn.LayerNorm(8), torch.randn(5, 8)
    model = nn.Sequential(norm, nn.Linear(8, 8), norm)
    expected = model(x)
    with ng.held_scales(model, x):
        for _ in range(2):
            assert (model(x) - expected).abs().max() < 1e-6


def test_weights_near_zero_are_no_bias():
    """Where the gain is 1 + w, w just after it began at zero could be taken for the bias that acts."""
    model = tiny("gemma").double()
    for site in ng.find_norms(model):
        site.module.weight.data = torch.linspace(1e-4, 9e-4, 32, dtype=torch.float64)
    with double_throughout(), torch.no_grad():
        logits = model(IDS).logits
        with ng.held_scales(model, IDS):
            assert (model(IDS).logits - logits).abs().max() < 1e-11 * logits.abs().max()


# norms that are more than their formula, and runs that are not the one held


class Clamped(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.clamp(-1e4, 1e4))


class Annotated(nn.LayerNorm):
    def forward(self, x):
        return self.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3) + self.bias


def hooked_norm():
    norm = nn.LayerNorm(8)
    norm.register_forward_hook(lambda module, args, output: output + torch.arange(8.0))
    return norm


MORE = dict(clamp=(lambda: Clamped(8), 3e4), std=(lambda: Annotated(8), 0.02), hook=(hooked_norm, 1.0))


@pytest.mark.parametrize(("make", "size"), MORE.values(), ids=MORE)
def test_a_norm_that_is_more_than_its_formula_is_refused(make, size):
    model, x = nn.Sequential(make(), nn.Linear(8, 8)).double(), size * torch.randn(4, 5, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^model: 0 returns something other than a norm"), ng.held_scales(model, x):
        pass
    assert len(model[0]._forward_hooks) == (make is hooked_norm), "a hook was left behind, or one is lost"


class ExpGain(nn.RMSNorm):
    def forward(self, x):
        return nn.functional.rms_norm(x, (8,), None, self.eps) * (self.weight - 1).exp()


class OfRows(nn.Module):
    """The standard deviation of rows as of a sample of d - 1."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1024)), nn.Parameter(torch.zeros(1024))

    def forward(self, x):
        return self.a * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-6).sqrt() + self.b


@pytest.mark.parametrize(("make", "d"), [(lambda: ExpGain(8, eps=1e-6), 8), (OfRows, 1024)], ids=["exp", "d - 1"])
def test_what_is_nearly_a_gain_is_none(make, d):
    """To a thousandth, exp(w - 1) is w where w is about 1, and d/(d - 1) is 1."""
    model, x = nn.Sequential(make()).double(), torch.randn(4, 5, d, dtype=torch.float64)
    (site,) = ng.find_norms(model, x)
    assert site.sources[0] is None
    next(model.parameters()).data += torch.linspace(-0.04, 0.04, d)
    with torch.no_grad(), ng.held_scales(model, x):
        held = model(x)
    assert (held - model(x)).abs().max() < 1e-5


def run_twice():
    norm = nn.LayerNorm(8)
    nn.init.normal_(norm.weight)
    return nn.Sequential(norm, nn.Linear(8, 8), norm).double()


def test_calls_are_counted_from_the_beginning_of_a_run():
    model, x = run_twice(), torch.randn(4, 5, 8, dtype=torch.float64)
    expected = model(x)
    with ng.held_scales(model, x):
        with pytest.raises(ValueError, match=r"^held_scales: 0 was held for vectors of shape"):
            model(x[:2])
        assert (model(x) - expected).abs().max() < 1e-12
        for index, other in ((2, nn.Identity()), (1, model[0])):
            kept, model[index] = model[index], other
            with pytest.raises(ValueError, match=r"^held_scales: 0 was held for (more|2) calls"):
                model(x)
            model[index] = kept


def test_scales_do_not_serve_for_activations_that_are_computed_again():
    class Again(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    model, x = Again(*run_twice()).double(), torch.randn(4, 5, 8, dtype=torch.float64, requires_grad=True)
    with (
        ng.held_scales(model, x.detach()),
        pytest.raises(ValueError, match=r"^held_scales: 0 was held for 2 calls a run"),
    ):
        model(x).sum().backward()


def test_gains_are_those_of_a_functional_call():
    model, x = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)).double(), torch.randn(3, 8, dtype=torch.float64)
    new = {name: (2 * p.detach() + 0.1).requires_grad_() for name, p in model.named_parameters()}
    expected = torch.func.functional_call(model, new, (x,))
    (gradient,) = torch.autograd.grad(expected.sum(), new["0.weight"])
    with ng.held_scales(model, x):
        held = torch.func.functional_call(model, new, (x,))
    assert (held - expected).abs().max() < 1e-12
    assert (torch.autograd.grad(held.sum(), new["0.weight"])[0] - gradient).abs().max() < 1e-12


def test_a_cache_is_read_as_it_was_given():
    model, cache = tiny("gpt2").double(), DynamicCache()
    with torch.no_grad():
        model(OTHERS, past_key_values=cache)
        expected = model(IDS, past_key_values=copy.deepcopy(cache)).logits
        with ng.held_scales(model, dict(input_ids=IDS, past_key_values=cache)):
            assert cache.get_seq_length() == 7
            assert (model(IDS, past_key_values=cache).logits - expected).abs().max() < 1e-12
