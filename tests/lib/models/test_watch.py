"""watch: what a norm saw and said, hooks gone afterwards."""

import copy

import normgeom as ng
import pytest
import torch
from norm_checks import close
from tiny_models import tiny, token_ids
from torch import nn


def names_of(model):
    return [site.name for site in ng.find_norms(model)]


def test_the_callback_sees_input_and_output_of_each_norm():
    model, seen = tiny("gpt2"), []
    sites = ng.find_norms(model)
    with ng.watch(model, sites, lambda site, x, y: seen.append((site, x.clone(), y.clone()))):
        logits = model(token_ids(2, 5)).logits
    assert [site for site, _, _ in seen] == sites
    assert not any(x.requires_grad or y.requires_grad for _, x, y in seen) and logits.requires_grad, "graphs"
    for site, x, y in seen:
        expected = nn.functional.layer_norm(x, (32,), site.module.weight, site.module.bias, 1e-5)
        close(y, expected, 0, site.name, "Swapped?")
    close(model.lm_head(seen[-1][2]), logits, 1e-6, "the last norm feeds the head", "Another site?")


def test_sites_of_the_original_are_those_of_a_copy_and_the_reverse():
    model = tiny("gpt2")
    models = model, copy.deepcopy(model)
    for one, other in (models, models[::-1]):
        seen = []
        with ng.watch(one, ng.find_norms(other), lambda site, x, y, seen=seen: seen.append(site)):
            one(token_ids(1, 4))
        assert [site.name for site in seen] == names_of(model)
        assert all(site.module is one.get_submodule(site.name) for site in seen), "a module that did not run"


def test_an_unknown_name_is_refused_before_any_hook():
    model = tiny("gpt2")
    message = r"^sites_or_names: this GPT2LMHeadModel has no module 'ln_f'$"
    with pytest.raises(ValueError, match=message), ng.watch(model, ["transformer.ln_f", "ln_f"], lambda *_: None):
        pass
    assert not any(m._forward_hooks for m in model.modules()), "a hook was left behind"


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_are_gone_afterwards(fails):
    model, calls = tiny("gpt2"), []

    def callback(name, x, y):
        calls.append(name)
        if fails:
            raise RuntimeError("callback")

    try:
        with ng.watch(model, names_of(model), callback):
            model(token_ids(1, 4))
    except RuntimeError:
        assert fails
    assert len(calls) == (1 if fails else 5)
    assert not any(m._forward_hooks for m in model.modules()), "a hook was left behind"


class Merging(nn.Linear):
    """Of low rank beside its weight, which it takes in for evaluation, as loralib's."""

    def train(self, mode=True):
        self.weight.data += 1.0 if self.training and not mode else 0.0
        return super().train(mode)


def test_no_code_for_a_change_of_mode_runs():
    model = nn.Sequential(nn.LayerNorm(8), Merging(8, 8)).train()
    before, x = model[1].weight.clone(), torch.randn(2, 8)
    ng.find_norms(model, x), ng.doctor(model, x)
    assert torch.equal(model[1].weight, before) and all(module.training for module in model.modules())


def test_a_shallow_copy_of_a_module_is_not_watched():
    norm, calls = nn.LayerNorm(4), []
    model = nn.Sequential(norm, copy.copy(norm))  # both hold one dict of hooks
    with ng.watch(model, ["0"], lambda *call: calls.append(call)):
        model(torch.randn(2, 4))
    assert len(calls) == 1


class Rms(nn.Module):
    def forward(self, x):
        return ng.rms_norm(x)


class Shared(nn.Module):
    """A map between two calls of one norm, for texts one at a time if ``mapped``."""

    def __init__(self, width=4, mapped=False):
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(4, width), Rms(), nn.Linear(width, 9)
        self.run = torch.vmap(self.once) if mapped else self.once

    def once(self, x):
        return self.head(self.norm(self.inner(self.norm(x))))

    def forward(self, x):
        return self.run(x)


@pytest.mark.parametrize("call", [ng.find_norms, ng.doctor, lambda m, x: ng.held_scales(m, x).__enter__()])
@pytest.mark.parametrize(("model", "inputs"), [("gpt2", token_ids(1, 4)), (tiny("gpt2"), "a text")])
def test_what_is_no_model_or_no_input(call, model, inputs):
    with pytest.raises(
        TypeError, match=r"^(model: expected a torch.nn.Module|inputs: expected a tensor.*), got a str$"
    ):
        call(model, inputs)


LOOKING = {
    "survey": lambda model, x: ng.Survey(model, example_inputs=x).run([x], progress=False),
    "doctor": ng.doctor,
    "freeze": lambda model, x: ng.freeze_norms(model, [x]),
    "held": lambda model, x: ng.held_scales(model, x).__enter__(),
}


@pytest.mark.parametrize("look", LOOKING.values(), ids=LOOKING)
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Shared(8), "^model: expected vectors of length 4 in all calls of norm, got 8$"),
        (Shared(mapped=True), "^model: norm runs under torch.vmap"),
        (Shared().to("meta"), "^model: expected (all its )?parameters .*that hold"),
    ],
    ids=["two widths", "vmap", "meta"],
)
def test_what_cannot_be_looked_at_is_refused_in_a_line(look, model, said):
    with pytest.raises(ValueError, match=said):
        look(model, torch.randn(3, 5, 4))


def test_a_model_made_in_inference_mode_can_be_looked_at():
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=0.5))
    assert [finding.problem for finding in ng.doctor(model, torch.eye(4))] == ["ε dominates"]
