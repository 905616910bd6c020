"""What dropping the subtraction costs: against losses written out by hand, on models of a few thousand weights."""

import copy

import normgeom as ng
import pytest
import torch
from normgeom_lab.common.parts import shifted
from normgeom_lab.without_mean import (
    by_shift,
    compare,
    least_divergence,
    logit_errors,
    next_by_shift,
    with_head,
    without_subtraction,
)
from surgery_models import Untouched, apart, logits, uneven
from tiny_models import token_ids

IDS = token_ids(3, 13)
BOUND = 1e-10  # of a logit in float64, as for every surgery
BATCHES = [IDS[:2], IDS[2:]]  # of unequal sizes: a mean of means would be another number


@pytest.fixture(scope="module")
def model():
    """Tests do not change it."""
    made = uneven("gpt2", resid_pdrop=0.5)
    with Untouched(made):
        yield made


@pytest.fixture(scope="module")
def other():
    return uneven("gpt2", seed=2)


def by_hand(network, other):
    """nll, kl and the largest difference of a log-probability, position by position."""
    nll, kl, largest, count = 0.0, 0.0, 0.0, 0
    ours, theirs = (logits(m, IDS)[:, :-1].softmax(-1) for m in (network, other))
    for p, q, ids in zip(ours, theirs, IDS, strict=True):
        for t in range(len(ids) - 1):
            nll -= float(q[t, ids[t + 1]].log())
            kl += float(sum(p[t] * (p[t] / q[t]).log()))
            largest = max(largest, float((p[t].log() - q[t].log()).abs().max()))
            count += 1
    return nll / count, kl / count, largest


def test_losses_are_those_written_out(model, other):
    """In evaluation mode, whatever mode the models are in."""
    table = compare(copy.deepcopy(model).train(), {"same": model, "other": other}, BATCHES)
    nll, kl, largest = by_hand(model, other)
    own, _, _ = by_hand(model, model)
    found = table.loc["other"]
    assert found.nll == pytest.approx(nll, rel=1e-9), "a mean over batches for one over tokens, or targets not shifted"
    assert found.more == pytest.approx(nll - own, rel=1e-9), "above what, and with which sign?"
    assert found.kl == pytest.approx(kl, rel=1e-9), "the divergence is of the changed from the unchanged"
    assert found.largest == pytest.approx(largest, rel=1e-9)
    assert abs(kl - by_hand(other, model)[1]) > 1e-3, "the test could not tell which way the divergence is taken"
    assert table.loc["same", ["more", "kl", "largest"]].tolist() == [0, 0, 0]
    assert table.loc["same", "nll"] == pytest.approx(own, rel=1e-9)
    p, q = (logits(network, IDS).softmax(-1) for network in (model, other))
    wanted = (p * (p / q).log()).sum(-1).min()
    assert least_divergence(model, other, IDS) == pytest.approx(float(wanted), rel=1e-9)


def test_nan_is_not_hidden(model):
    broken = copy.deepcopy(model)
    broken.transformer.ln_f.bias.data[0] = torch.nan
    table = compare(model, {"broken": broken}, BATCHES)
    assert table.loc["broken"].isna().all(), "a comparison with NaN is false, and a maximum may forget it"


def test_the_copy_forgets_the_mean_and_the_model_does_not(model):
    name = "transformer.h.1.ln_2"
    one, every = without_subtraction(model, [name]), without_subtraction(model)
    assert {site.name for site in ng.find_norms(one) if site.kind == "rms"} == {name}
    assert {site.kind for site in ng.find_norms(every)} == {"rms"}
    assert {id(p) for p in one.parameters()} == {id(p) for p in model.parameters()}, "the weights were copied"


def test_a_shift_moves_the_stream_and_not_the_outputs(model):
    moved = shifted(model, 2.5)
    before, after = (m.get_input_embeddings()(IDS).detach() for m in (model, moved))
    assert apart(after - before, torch.full_like(before, 2.5)) < 1e-12
    assert apart(logits(moved), logits(model)) < 1e-10, "the head moved along, or the model can see its mean"
    assert moved.lm_head.weight is model.lm_head.weight
    assert moved.transformer.wpe.weight is model.transformer.wpe.weight, "the rest was copied"


@pytest.mark.parametrize("family", ["gpt2", "phi"], ids=["without a bias", "with one"])
def test_a_head_that_reads_more_moves_one_logit(family):
    """By t vᵀ(y − β) at every position, y what the final norm gives."""
    model = uneven(family)
    norm = ng.find_norms(model)[-1]
    v, seen = torch.linspace(-1, 2, 32, dtype=torch.float64), []
    with Untouched(model):
        changed = with_head(model, v, token=5, t=3.0)
    with ng.watch(model, [norm], lambda site, x, y: seen.append(y)):
        wanted = logits(model).clone()
    wanted[..., 5] += 3.0 * (seen[0] - norm.module.bias.detach()).double() @ v
    assert apart(logits(changed), wanted) < BOUND, "another token, β not made up for, or the head's own bias lost"
    kept = {id(p) for name, p in model.named_parameters() if "lm_head" not in name}
    assert kept <= {id(p) for p in changed.parameters()}, "more than the head was copied"


def test_shifts_start_from_centred_writers(model):
    table = by_shift(model, [0.0, 1.0, -1.0], BATCHES).set_index("c")
    assert table.largest[0.0] < BOUND, "the writers were not centred"
    assert (table.kept < BOUND**2).all(), "the shift changed the function"
    centred = ng.center_writers(copy.deepcopy(model))
    for c in (1.0, -1.0):
        moved = shifted(centred, c)
        nll, kl, _ = by_hand(model, ng.drop_mean_subtraction(copy.deepcopy(moved)))
        assert (table.nll[c], table.kl[c]) == pytest.approx((nll, kl), rel=1e-8), "not dropped, or not at all norms"
    assert table.kl[1.0] > 1e-3 and table.kl[1.0] != table.kl[-1.0]


def test_next_tokens_with_and_without_the_subtraction(model):
    found, p = next_by_shift(model, [0.0, 1.0], IDS), logits(model, IDS).softmax(-1)
    own = [float(p[i, t, IDS[i, t + 1]].log()) for i in range(3) for t in range(12)]
    for c, rows in found.items():
        assert rows["before"].tolist() == pytest.approx(own, abs=1e-12), "the token itself for the next one?"
        assert apart(rows["with"], rows["before"]) < BOUND, f"c = {c}: with the subtraction the function stays"
    assert apart(found[0.0]["without"], found[0.0]["before"]) < BOUND, "centred weights compute the same without it"
    by_table = by_shift(model, [1.0], [IDS]).more[0]
    assert float((found[1.0]["before"] - found[1.0]["without"]).mean()) == pytest.approx(by_table, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_errors_of_logits_are_from_the_rounded_model_in_float64(dtype):
    model = uneven("gpt2", dtype=torch.float32)
    rounded = copy.deepcopy(model).to(dtype)
    right = logits(copy.deepcopy(rounded).double())
    found = logit_errors(model, dtype, BATCHES)
    assert found["exact"] < BOUND, "the conversion was compared in the model's own format"
    assert found["before"] == pytest.approx(apart(logits(rounded), right), rel=1e-6), "not the largest?"
    assert found["after"] == pytest.approx(apart(logits(ng.to_rms_norm(rounded)), right), rel=1e-6)
    assert {site.kind for site in ng.find_norms(model)} == {"layer"}, "the model itself was converted"


def test_errors_of_logits_in_float64_are_float64_throughout():
    """A GPT-J of float64 weights has an error of its own: its attention is float32."""
    found = logit_errors(uneven("gptj", dtype=torch.float64), torch.float64, [IDS])
    assert found["exact"] <= 1e-12 and 1e-10 < found["before"] < 1e-4
