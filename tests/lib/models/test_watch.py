"""watch: what a norm saw and said, hooks gone afterwards."""

import normgeom as ng
import pytest
from norm_checks import close
from tiny_models import tiny, token_ids
from torch import nn


def test_the_callback_sees_input_and_output_of_each_norm():
    model, ids, seen = tiny("gpt2"), token_ids(2, 5), []
    sites = ng.find_norms(model)
    with ng.watch(model, sites, lambda site, x, y: seen.append((site, x.clone(), y.clone()))):
        logits = model(ids).logits
    assert [site.name for site, _, _ in seen] == [site.name for site in sites]
    for site, x, y in seen:
        close(
            y, nn.functional.layer_norm(x, (32,), site.module.weight, site.module.bias, 1e-5), 0, site.name, "Swapped?"
        )
    close(model.lm_head(seen[-1][2]), logits, 1e-6, "the last norm feeds the head", "Another site?")


def test_the_tensors_carry_no_graph():
    model, flags = tiny("gpt2"), []
    with ng.watch(model, ng.find_norms(model), lambda site, x, y: flags.append(x.requires_grad or y.requires_grad)):
        model(token_ids(1, 4)).logits.sum().backward()
    assert flags == [False] * 5
    assert model.transformer.ln_f.weight.grad is not None, "watching must not cut the model's own graph"


def test_only_the_sites_given():
    model, names = tiny("gpt2"), []
    with ng.watch(model, ng.find_norms(model)[-1:], lambda site, x, y: names.append(site.name)):
        model(token_ids(1, 4))
    assert names == ["transformer.ln_f"]


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_are_gone_afterwards(fails):
    model, calls = tiny("gpt2"), []

    def callback(site, x, y):
        calls.append(site.name)
        if fails:
            raise RuntimeError("callback")

    try:
        with ng.watch(model, ng.find_norms(model), callback):
            model(token_ids(1, 4))
    except RuntimeError:
        assert fails
    before = len(calls)
    model(token_ids(1, 4))
    assert before == (1 if fails else 5)
    assert len(calls) == before, "a hook was left behind"


def test_a_site_of_another_model_is_refused_before_any_hook():
    model, other = tiny("gpt2"), tiny("gpt2", seed=1)
    sites = [*ng.find_norms(model)[:1], *ng.find_norms(other)[:1]]
    message = r"^sites: transformer\.h\.0\.ln_1 is not a module of this GPT2LMHeadModel"
    with pytest.raises(ValueError, match=message), ng.watch(model, sites, lambda *_: None):
        pass
    assert not any(m._forward_hooks for m in model.modules()), "a hook was left behind"
