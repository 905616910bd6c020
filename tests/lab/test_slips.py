"""Wrong conversions: each is the right one but for what its name says."""

import copy

import normgeom as ng
import pytest
import torch
from normgeom_lab.without_mean import wrong_conversions
from surgery_models import Untouched, apart, logits, uneven


@pytest.fixture(scope="module")
def model():
    return uneven("gpt2", layer_norm_epsilon=1e-2)


@pytest.fixture(scope="module")
def slips(model):
    with Untouched(model):
        return wrong_conversions(model)


def changed(network, model):
    """The parameters that are not those of the right conversion."""
    right = dict(ng.to_rms_norm(copy.deepcopy(model)).named_parameters())
    return {name for name, p in network.named_parameters() if apart(p.detach(), right[name].detach()) > 1e-12}


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("position embedding not centred", "transformer.wpe.weight"),
        ("one matrix not centred", "transformer.h.0.attn.c_proj.weight"),
        ("one bias not centred", "transformer.h.1.mlp.c_proj.bias"),
    ],
)
def test_one_tensor_is_left_uncentred_and_no_other(model, slips, name, parameter):
    assert changed(slips[name], model) == {parameter}, "another tensor than its name says"
    assert torch.equal(slips[name].get_parameter(parameter), model.get_parameter(parameter)), "not as it was"


def test_nothing_centred_is_folded_and_dropped(model, slips):
    wanted = logits(ng.drop_mean_subtraction(copy.deepcopy(model)))
    assert apart(logits(slips["nothing centred"]), wanted) < 1e-10, "something was centred, or not folded"


def test_a_tied_head_centred_too_reads_the_centred_matrix(model, slips):
    found = slips["tied head centred too"]
    assert changed(found, model) == {"lm_head.weight", "lm_head.bias"}
    # the whole network with a tied head whose rows were centred before anything else
    wrong = copy.deepcopy(model)
    wrong.lm_head.weight = torch.nn.Parameter(ng.project_out(model.lm_head.weight.detach(), ng.uniform_vector(32)))
    assert apart(logits(found), logits(wrong)) < 1e-10, "centred after folding, or not centred"


def test_epsilon_is_outside_the_root(model, slips):
    found = slips["ε outside the root"]
    assert changed(found, model) == set()
    x = torch.randn(5, 32, dtype=torch.float64)
    wanted = x / (x.norm(dim=-1, keepdim=True) / 32**0.5 + 1e-2)
    assert apart(found.transformer.ln_f(x), wanted) < 1e-14, "ε inside the root, or added to the sum of squares"
