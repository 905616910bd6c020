"""Held scales: norms are the affine maps of their formula, and nothing of them is left in second derivatives."""

import normgeom as ng
import pytest
import torch
from normgeom.models import held
from normgeom.models.flow import double_throughout
from surgery_models import uneven
from tiny_models import tiny, token_ids
from torch import nn

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
