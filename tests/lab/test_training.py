"""Training without what lies along 1, under flips and rotations, and what it costs."""

import itertools
import math

import normgeom as ng
import pytest
import torch
from norm_checks import close
from normgeom_lab import training as lab
from normgeom_lab.common.checks import Draws
from normgeom_lab.common.stream import stream_writers
from normgeom_lab.common.tiny import gpt2, perturb
from tiny_models import token_ids
from torch import nn
from torch.nn.functional import log_softmax

CONFIG = gpt2(vocabulary=64, length=16, width=6, layers=2, heads=2)
IDS = token_ids(3, 8)
SIGNS = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0, 1.0])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def gradients(model):
    """Of the mean cross-entropy, written out, by the names of the parameters."""
    logits = model(IDS).logits
    loss = torch.stack([-log_softmax(logits[i, t], -1)[IDS[i, t + 1]] for i in range(3) for t in range(7)]).mean()
    return float(loss.detach()), dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )


def writer_names(model):
    ids = {id(p) for p in stream_writers(model)}
    return {name for name, p in model.named_parameters() if id(p) in ids}


def test_twins_that_satisfy_the_theorem():
    for model, kind in zip(lab.unbiased_twins(CONFIG, 3), ("layer", "rms"), strict=True):
        norms = [m for name, m in model.named_modules() if name.rpartition(".")[2].startswith("ln_")]
        assert all(norm.weight is not None and getattr(norm, "bias", None) is None for norm in norms), "a β is left"
        assert min(float((norm.weight.detach() - 1).abs().max()) for norm in norms) > 0.05, "gains at their start"
        assert model.lm_head.weight is not model.transformer.wte.weight, "the head is tied"
        assert {p.dtype for p in model.parameters()} == {torch.float64}
        assert {site.kind for site in ng.find_norms(model, IDS)} == {kind}
    layer, rms = (model.state_dict() for model in lab.unbiased_twins(CONFIG, 3))
    assert layer.keys() == rms.keys() and all(torch.equal(value, rms[name]) for name, value in layer.items())


@pytest.mark.parametrize("clip", [math.inf, 0.01])
@pytest.mark.parametrize("leave_out", [(), ("gradients",), ("steps",)])
def test_ten_steps_by_hand(leave_out, clip):
    """θ − η∇L, with the parts left out that are named, gradients before they are clipped."""
    model = lab.unbiased_twins(CONFIG, 3)[1]
    found, writers = lab.descend(model, IDS, sgd, leave_out, clip), writer_names(model)
    for step in range(10):
        loss, of_loss = gradients(model)
        assert float(found.losses[step]) == pytest.approx(loss, rel=1e-12), "in float32? not shifted?"
        if "gradients" in leave_out:
            of_loss |= {name: of_loss[name] - of_loss[name].mean(-1, keepdim=True) for name in writers}
        length = float(torch.stack([g.norm() for g in of_loss.values()]).norm())
        factor = min(1, clip / (length + 1e-6))  # torch divides by the length plus 1e-6
        for name, p in model.named_parameters():
            p.data -= 0.1 * factor * of_loss[name]
            if "steps" in leave_out and name in writers:
                p.data -= p.data.mean(-1, keepdim=True)
    for (name, p), got in zip(model.named_parameters(), found.model.parameters(), strict=True):
        close(got, p.detach(), 1e-11, f"{name}, {leave_out}", "Left out late?")


# flips and rotations


def network(which, seed=3):
    return perturb(ng.twins(CONFIG, seed)[which], Draws(seed))


def logits_and_stream(model):
    seen = []
    sites = ng.find_norms(model, IDS)
    with torch.no_grad(), ng.watch(model, sites, lambda site, x_in, x_out: seen.append(x_in.clone())):
        return model(IDS).logits, torch.stack(seen)


@pytest.mark.parametrize("model", [network(1), lab.unbiased_twins(CONFIG, 3)[1]], ids=["rms norm", "own head"])
def test_no_output_changes_and_the_stream_is_flipped(model):
    """Matrix products add the same numbers, some with both factors' signs changed: no bit differs."""
    (logits, stream), (others, flips) = logits_and_stream(model), logits_and_stream(lab.flipped(model, SIGNS))
    assert torch.equal(others, logits), "a writer, a reader or the head was not flipped"
    assert torch.equal(flips, stream * SIGNS)


def test_the_bias_of_a_norm_is_flipped_and_its_gain_is_not():
    model = network(0)
    before, after = model.transformer.ln_f, lab.flipped(model, SIGNS).transformer.ln_f
    assert torch.equal(after.bias, before.bias * SIGNS) and torch.equal(after.weight, before.weight)


@pytest.mark.parametrize("d", [2, 3, 6])
def test_each_vector_of_signs_once_up_to_its_negative(d):
    rows = [tuple(row) for row in lab.sign_vectors(d).tolist()]
    assert rows[0] == (1.0,) * d, "1 comes first"
    both = [*rows, *(tuple(-x for x in row) for row in rows)]
    assert sorted(both) == sorted(itertools.product((-1.0, 1.0), repeat=d))


def test_occupancies_and_shares_are_those_of_projections():
    model, vectors, seen = network(1), torch.stack([torch.ones(6), 3 * SIGNS]), []
    with ng.watch(model, ng.find_norms(model)[-1:], lambda site, x, y: seen.append(x.flatten(0, 1))):
        model(IDS)
    cosines = torch.nn.functional.cosine_similarity(seen[0][:, None], vectors, dim=-1)
    expected = 6 * cosines.square().mean(0).double()
    close(lab.occupancies(model, IDS, vectors), expected, 1e-6, "occupancies", "Another norm? The vectors' lengths?")

    name = "transformer.h.1.mlp.c_proj.weight"
    gradient = gradients(model)[1][name]
    expected = (gradient @ torch.full((6, 1), 6**-0.5)).norm() ** 2 / gradient.norm() ** 2
    assert lab.share_along_one(model, IDS) == pytest.approx(float(expected), rel=1e-4), "another writer or axis?"
    shares = [lab.share_along_one(lab.flipped(model, signs), IDS) for signs in lab.sign_vectors(6)]
    assert sum(shares) / len(shares) == pytest.approx(1 / 6, rel=1e-5), "cor-gradient-share without a training"
    assert max(shares) > 2 * min(shares), "they are all alike: nothing was averaged"


# Muon


def draw(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3), (1, 5)])
def test_each_singular_value_goes_through_the_polynomial(shape):
    matrix = draw(*shape)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    close(lab.newton_schulz(matrix), u @ torch.diag(s) @ v, 1e-11, "orthogonalised", "Not transposed back?")
    assert (
        lab.newton_schulz(torch.zeros(shape)).eq(0).all() and lab.newton_schulz(matrix.float()).dtype == torch.float32
    )


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("shape", [(4, 6), (9, 2)])
def test_its_steps_are_those_of_torchs(shape):
    """Torch orthogonalises in bfloat16: to some hundredths of a step."""
    mine, theirs = (nn.Parameter(draw(*shape).float()) for _ in range(2))
    rules = lab.Muon([mine], 0.1, decay=0.5), torch.optim.Muon([theirs], lr=0.1, momentum=0.95, weight_decay=0.5)
    for i in range(4):
        mine.grad = draw(*shape, seed=10 + i).float()
        theirs.grad = mine.grad.clone()
        for rule in rules:
            rule.step()
    off = float((mine - theirs).detach().abs().max())
    assert off < 4 * 0.1 * 0.05 * math.sqrt(max(1, shape[0] / shape[1])), f"off by {off:.3f}: momentum? decay? scale?"


def test_vectors_step_along_their_momentum():
    p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    rule, average, expected = lab.Muon([p], 0.1, 0.0), 0, torch.zeros(3, dtype=torch.float64)
    for i in range(3):
        p.grad = draw(3, seed=i)
        rule.step()
        average = 0.95 * average + 0.05 * p.grad
        expected = expected - 0.1 * (0.05 * p.grad + 0.95 * average)
    close(p.detach(), expected, 1e-15, "vector", "Orthogonalised? Without momentum?")
