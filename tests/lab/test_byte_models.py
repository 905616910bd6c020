"""Byte models: what their training depends on, and measures of their blocks against models made by hand."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, rounding
from normgeom.norms.functions import RMSNorm
from normgeom.text.tokens import random_windows
from normgeom_lab.common.stacks import LanguageModel, Stack, normalise_weights
from normgeom_lab.common.tiny import fit, next_token_loss
from normgeom_lab.placement import block_table, first_over_last, loss_without_norms, train_bytes, varying_share
from torch import nn

TEXT = torch.randint(256, (500,), generator=torch.Generator().manual_seed(0))


def small(placement="pre", layers=3):
    torch.manual_seed(0)
    return LanguageModel(11, 9, Stack(8, 2, layers, placement), scale=0.5).double()


def windows(seed=0):
    return torch.randint(11, (4, 7), generator=torch.Generator().manual_seed(seed))


def bound(x):
    return 4 * 300 * rounding(x, torch.float64, 64)


def test_training_is_fit_on_windows_of_the_text():
    model, losses = train_bytes(TEXT, "post", 1, 1e-3, 3, seed=5, warmup=2, batch=2)
    torch.manual_seed(5)
    other = LanguageModel(256, 65, Stack(64, 4, 1, "post"), scale=1 / 8)
    batches = random_windows(TEXT, 65, 2, 5)
    expected = fit(other, [next(batches) for _ in range(3)], 1e-3, 2)
    assert losses == expected, "Another seed for the batches? The warm-up left out? Another size of batch?"
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q) and p.dtype == torch.float32


def test_norm_and_scale_are_those_of_the_stack():
    model, _ = train_bytes(TEXT, "pre", 1, 1e-3, 0, seed=5, norm="none", scale=3.0)
    plain, _ = train_bytes(TEXT, "pre", 1, 1e-3, 0, seed=5)
    assert isinstance(model.stack.final, nn.Identity) and isinstance(model.stack.blocks[0].mlp.before, nn.Identity)
    for part in ("attention.branch.in_proj", "mlp.branch.2"):
        weights = (m.stack.blocks[0].get_submodule(part).weight for m in (model, plain))
        assert torch.allclose(next(weights), 3 * next(weights)), f"{part}: not three times as large"
    assert torch.equal(model.head.weight, plain.head.weight), "the head is no branch"
    rms, _ = train_bytes(TEXT, "pre", 1, 1e-3, 0, seed=5, norm="rms")
    assert isinstance(rms.stack.blocks[0].mlp.before, RMSNorm)


def test_on_the_sphere_weights_stay_there():
    model, losses = train_bytes(TEXT, "sphere", 1, 1e-2, 3, seed=5)
    before = copy.deepcopy(model.state_dict())
    for name, value in normalise_weights(model).state_dict().items():
        assert torch.allclose(before[name], value, atol=1e-6), f"{name} was left where the update took it"
    torch.manual_seed(5)
    other = LanguageModel(256, 65, Stack(64, 4, 1, "sphere", "layer"), scale=1 / 8)
    batches = random_windows(TEXT, 65, 4, 5)
    own = fit(normalise_weights(other), [next(batches) for _ in range(3)], 1e-2, 0, normalise_weights)
    assert losses == pytest.approx(own, rel=1e-4)


def test_no_updates_is_the_model_as_it_starts():
    model, losses = train_bytes(TEXT, "pre", 1, 1e-3, 0, seed=5)
    trained, (first,) = train_bytes(TEXT, "pre", 1, 1e-3, 1, seed=5)
    assert losses == [] and not torch.equal(model.head.weight, trained.head.weight)
    assert float(next_token_loss(model, next(random_windows(TEXT, 65, 4, 5))).detach()) == pytest.approx(
        first, rel=1e-5
    )
    with pytest.raises(ValueError, match="updates: expected a number >= 0, got -1"):
        train_bytes(TEXT, "pre", 1, 1e-3, -1, seed=5)


def test_the_share_that_varies():
    model = small()
    model.stack = nn.Identity()
    rows = torch.zeros(11, 8).double()
    rows[:, 0], rows[::2, 1], rows[1::2, 1] = 3.0, 1.0, -1.0  # mean (3, 0, …) and a spread of 1
    model.tokens.weight.data, model.positions.weight.data = rows, torch.zeros(9, 8).double()
    ids = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    assert varying_share(model, ids) == pytest.approx(1 / 10, abs=1e-12), "Of each window's mean? The other share?"


def test_the_final_norm_is_in_the_share():
    model, ids = small(), windows()
    embedded = model.tokens(ids) + model.positions.weight[:7]
    x = model.stack(embedded).detach().reshape(-1, 8)
    expected = (x - x.mean(0)).square().sum() / x.square().sum()
    got = torch.tensor(varying_share(model, ids)).double()
    close(got, expected, 1e-6, "share", "Of the stream before the final norm? Positions left out?")


def test_gradients_of_the_first_and_last_matrix():
    model, ids = small(), windows()
    logits = model(ids[:, :-1]).log_softmax(-1)
    loss = -logits.gather(-1, ids[:, 1:, None]).mean()
    loss.backward()
    sizes = [block.mlp.branch[2].weight.grad.square().sum().sqrt() for block in model.stack.blocks]
    assert first_over_last(model, ids) == pytest.approx(float(sizes[0] / sizes[2]), rel=1e-10), "Last over first? W₁?"


def test_blocks_one_by_one():
    model, ids = small(), windows()
    before = copy.deepcopy(model.state_dict())
    table = block_table(model, ids)
    assert list(table.index) == [1, 2, 3], "blocks are counted from 1"
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items()), "the model has changed"
    x = (model.tokens(ids) + model.positions.weight[:7]).detach()
    for number, block in enumerate(model.stack.blocks, 1):
        y = block(x).detach()
        rows = [(a, b) for a, b in zip(x.flatten(0, 1), y.flatten(0, 1), strict=True)]
        lengths = [sum(float((t @ t).sqrt()) for t in ts) for ts in zip(*((b - a, a) for a, b in rows), strict=True)]
        cosine = sum(float(a @ (b - a) / (a.norm() * (b - a).norm())) for a, b in rows) / len(rows)
        less = copy.deepcopy(model)
        less.stack.blocks = nn.ModuleList(b for i, b in enumerate(less.stack.blocks, 1) if i != number)
        more = float(next_token_loss(less, ids) - next_token_loss(model, ids))
        expected = [float(y.square().mean()), lengths[0] / lengths[1], cosine, more]
        assert list(table.loc[number]) == pytest.approx(expected, rel=1e-9, abs=1e-12), (
            "The stream before the block? The stream behind it in the ratio? Another block taken out?"
        )
        x = y


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_without_norms_nothing_is_divided(placement):
    model, ids = small(placement, layers=1), windows()
    got = loss_without_norms(model, ids)
    block, x = model.stack.blocks[0], (model.tokens(ids) + model.positions.weight[:7])[:, :-1]
    x = x + block.attention.branch(x)
    x = x + block.mlp.branch(x)
    expected = F.cross_entropy((x @ model.head.weight.T).flatten(0, 1), ids[:, 1:].flatten()).detach()
    close(torch.tensor(got).double(), expected, 1e-6, f"{placement} without norms", "A norm left: final, after, sum?")
    assert not isinstance(model.stack.blocks[0].attention.before, nn.Identity) or placement == "post"
    assert math.isfinite(got)
