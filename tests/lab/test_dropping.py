"""What dropping the subtraction costs: against losses written out by hand, on models of a few thousand weights."""

import copy
from types import SimpleNamespace

import mpmath
import normgeom as ng
import pytest
import torch
from normgeom_lab.common.parts import shifted
from normgeom_lab.without_mean import (
    ALL,
    by_shift,
    by_site,
    compare,
    drop_errors,
    least_divergence,
    next_by_shift,
    with_head,
    without_subtraction,
)
from surgery_models import Untouched, apart, logits, uneven
from tiny_models import token_ids
from torch import nn

IDS = token_ids(3, 13)
BOUND = 1e-10  # of a logit in float64, as for every surgery
BATCHES = [IDS[:2], IDS[2:]]  # of unequal sizes: a mean of means would be another number


@pytest.fixture
def model():
    return uneven("gpt2")


def probabilities(network, ids=IDS):
    return logits(network, ids)[:, :-1].softmax(-1)


def by_hand(network, other):
    """nll, kl and the largest difference of a log-probability, position by position."""
    nll, kl, largest, count = 0.0, 0.0, 0.0, 0
    for p, q, ids in zip(probabilities(network), probabilities(other), IDS, strict=True):
        for t in range(len(ids) - 1):
            nll -= float(q[t, ids[t + 1]].log())
            kl += float(sum(p[t, v] * (p[t, v] / q[t, v]).log() for v in range(len(p[t]))))
            largest = max(largest, float((p[t].log() - q[t].log()).abs().max()))
            count += 1
    return nll / count, kl / count, largest


def test_losses_are_those_written_out(model):
    other = uneven("gpt2", seed=2)
    table = compare(model, {"same": model, "other": other}, BATCHES)
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


def test_the_smallest_divergence_is_that_written_out(model):
    other = uneven("gpt2", seed=2)
    p, q = (logits(network, IDS).softmax(-1) for network in (model, other))
    wanted = (p * (p / q).log()).sum(-1)
    assert least_divergence(model, other, IDS) == pytest.approx(float(wanted.min()), rel=1e-9)
    back = (q * (q / p).log()).sum(-1).min()
    assert abs(float(back - wanted.min())) > 1e-3, "the test could not tell which way the divergence is taken"


def test_a_common_number_in_all_logits_is_no_difference(model):
    other = copy.deepcopy(model)
    other.lm_head = nn.Linear(32, 64, dtype=torch.float64)
    other.lm_head.weight.data = model.lm_head.weight.detach().clone()
    other.lm_head.bias.data.fill_(5.0)
    assert compare(model, {"moved": other}, BATCHES).loc["moved", "largest"] < 1e-12


class Bigram(nn.Module):
    """The next token's logits are a row of a table."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, ids):
        return SimpleNamespace(logits=self.table[ids])


def test_a_divergence_of_second_order_is_not_lost_in_terms_of_first():
    generator = torch.Generator().manual_seed(0)
    table, noise = torch.randn(2, 8, 8, generator=generator, dtype=torch.float64)
    found = compare(Bigram(table), {"near": Bigram(table + 1e-9 * noise)}, [torch.tensor([[3, 5]])])
    with mpmath.workdps(50):
        p, q = ([mpmath.exp(mpmath.mpf(x)) for x in row.tolist()] for row in (table[3], table[3] + 1e-9 * noise[3]))
        p, q = ([x / sum(values) for x in values] for values in (p, q))
        exact = float(sum(x * mpmath.log(x / y) for x, y in zip(p, q, strict=True)))
    assert 1e-20 < exact < 1e-17
    assert found.kl["near"] == pytest.approx(exact, rel=1e-5, abs=0), "terms of size 1e-9 summed, which should cancel"


def test_a_divergence_of_what_the_other_rules_out_is_finite():
    table = torch.zeros(2, 2, dtype=torch.float64)
    table[0, 1] = 2000.0
    found = compare(Bigram(table), {"opposite": Bigram(table.flip(-1))}, [torch.tensor([[0, 1]])])
    assert found.kl["opposite"] == pytest.approx(2000.0), "an infinity times nothing"


def test_a_model_is_in_evaluation_mode_while_it_is_measured():
    model = uneven("gpt2", resid_pdrop=0.5).train()
    table = compare(model, {"same": model}, BATCHES)
    assert table.loc["same", "kl"] == 0 and model.training


def test_nan_is_not_hidden(model):
    broken = copy.deepcopy(model)
    broken.transformer.ln_f.bias.data[0] = torch.nan
    table = compare(model, {"broken": broken}, BATCHES)
    assert table.loc["broken"].isna().all(), "a comparison with NaN is false, and a maximum may forget it"


def test_the_copy_forgets_the_mean_and_the_model_does_not(model):
    name = "transformer.h.1.ln_2"
    with Untouched(model):
        one, every = without_subtraction(model, [name]), without_subtraction(model)
    assert {site.name for site in ng.find_norms(one) if site.kind == "rms"} == {name}
    assert {site.kind for site in ng.find_norms(every)} == {"rms"}
    wanted = logits(ng.drop_mean_subtraction(copy.deepcopy(model), [name]))
    assert apart(logits(one), wanted) == 0
    assert {id(p) for p in one.parameters()} == {id(p) for p in model.parameters()}, "the weights were copied"


def test_a_shift_moves_the_stream_and_not_the_outputs(model):
    with Untouched(model):
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
    assert (model.lm_head.bias is None) == (family == "gpt2"), "the test could not tell"
    v, seen = torch.linspace(-1, 2, 32, dtype=torch.float64), []
    with Untouched(model):
        changed = with_head(model, v, token=5, t=3.0)
    with ng.watch(model, [norm], lambda site, x, y: seen.append(y)):
        before = logits(model)
    wanted = before.clone()
    wanted[..., 5] += 3.0 * (seen[0] - norm.module.bias.detach()).double() @ v
    assert apart(logits(changed), wanted) < BOUND, "another token, β not made up for, or the head's own bias lost"
    kept = {id(p) for name, p in model.named_parameters() if "lm_head" not in name}
    assert kept <= {id(p) for p in changed.parameters()}, "more than the head was copied"


def test_what_a_reader_does_along_the_normal_is_never_used(model):
    normal = 1 / model.transformer.ln_f.weight.detach()
    changed = with_head(model, normal, token=7, t=50.0)
    assert apart(logits(changed), logits(model)) < 1e-9, "along the normal of the plane of outputs nothing is read"
    assert apart(logits(without_subtraction(changed)), logits(without_subtraction(model))) > 1, "nothing was changed"


def test_drop_errors_are_those_of_the_outputs(model):
    found = drop_errors(model, BATCHES)
    sites, seen = ng.find_norms(model), {}
    with ng.watch(model, sites, lambda site, x, y: seen.setdefault(site.name, []).append((x, y))), torch.no_grad():
        model(IDS)
    for site in sites:
        ((x, y),) = seen[site.name]
        dropped = ng.rms_norm(x, site.weight.double(), site.bias.double(), site.eps)
        wanted = (dropped - y).norm(dim=-1) / (y - site.bias.double()).norm(dim=-1)
        assert found[site.name] == pytest.approx(float(wanted.mean()), rel=1e-4), site.name
    assert list(found.index) == [site.name for site in sites]


def test_norms_that_subtract_nothing_are_no_sites():
    """Phi's queries and keys have LayerNorms of their own; Llama has none anywhere."""
    mixed = without_subtraction(uneven("gpt2"), ["transformer.ln_f"])
    assert "transformer.ln_f" not in drop_errors(mixed, BATCHES)
    assert "transformer.ln_f" not in by_site(mixed, BATCHES).site.tolist()


def test_one_site_at_a_time_then_all(model):
    table = by_site(model, BATCHES)
    names = [site.name for site in ng.find_norms(model)]
    assert table.site.tolist() == [*names, ALL]
    for row in table.itertuples():
        chosen = None if row.site == ALL else [row.site]
        nll, kl, largest = by_hand(model, ng.drop_mean_subtraction(copy.deepcopy(model), chosen))
        assert (row.nll, row.kl, row.largest) == pytest.approx((nll, kl, largest), rel=1e-8), row.site
    errors = drop_errors(model, BATCHES)
    assert table.drop_error.tolist() == pytest.approx([*errors, errors.mean()])


def test_shifts_start_from_the_free_gauge(model):
    with Untouched(model):
        table = by_shift(model, [0.0, 1.0, -1.0], BATCHES).set_index("c")
    # logarithms of probabilities within a of each other: the divergence is at most about a²/2
    assert table.largest[0.0] < BOUND and table.drop_error[0.0] < BOUND, "the writers were not centred"
    assert table.kl[0.0] < BOUND**2, "a divergence of second order, summed from terms of first order"
    assert (table.kept < BOUND**2).all(), "the shift changed the function"
    centred = ng.center_writers(copy.deepcopy(model))
    for c in (1.0, -1.0):
        other = shifted(centred, c)
        nll, kl, _ = by_hand(model, ng.drop_mean_subtraction(copy.deepcopy(other)))
        assert (table.nll[c], table.kl[c]) == pytest.approx((nll, kl), rel=1e-8), "not dropped, or not at all norms"
        assert table.drop_error[c] == pytest.approx(drop_errors(other, BATCHES).mean())
    assert table.kl[1.0] > 1e-3 and table.kl[1.0] != table.kl[-1.0]


def test_next_tokens_with_and_without_the_subtraction(model):
    found = next_by_shift(model, [0.0, 1.0], IDS)
    own = [float(p[t, ids[t + 1]].log()) for p, ids in zip(probabilities(model), IDS, strict=True) for t in range(12)]
    for c, rows in found.items():
        assert rows["before"].tolist() == pytest.approx(own, abs=1e-12), "the token itself for the next one?"
        assert apart(rows["with"], rows["before"]) < BOUND, f"c = {c}: with the subtraction the function stays"
        changed = apart(rows["without"], rows["before"])
        assert changed < BOUND if c == 0 else changed > 0.1, (
            f"c = {c}: without it only centred weights compute the same"
        )
    by_table = by_shift(model, [1.0], [IDS]).more[0]
    assert float((found[1.0]["before"] - found[1.0]["without"]).mean()) == pytest.approx(by_table, rel=1e-9)
