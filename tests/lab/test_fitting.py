"""The plain training loop: against updates done by hand."""

import math

import pytest
import torch
from normgeom_lab.common.stacks import LanguageModel, Stack
from normgeom_lab.common.tiny import fit, next_token_loss
from torch import nn


def batches(count, seed=0):
    return torch.randint(7, (count, 3, 6), generator=torch.Generator().manual_seed(seed))


def small():
    torch.manual_seed(0)
    return LanguageModel(7, 6, Stack(8, 2, 1))


class Constant(nn.Module):
    """Logits that do not depend on the text."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(7))

    def forward(self, ids):
        return self.logits.expand(*ids.shape, 7)


def test_the_loss_is_of_the_next_token():
    model = Constant()
    ids = batches(1)[0]
    assert float(next_token_loss(model, ids).detach()) == pytest.approx(math.log(7), rel=1e-5)
    model.logits.data[3] = 50.0
    share = float((ids[:, 1:] == 3).float().mean())
    assert float(next_token_loss(model, ids).detach()) == pytest.approx(50 * (1 - share), abs=1e-3), (
        "the first token counted?"
    )


def test_the_first_update_is_adams():
    """Adam's first step moves every weight by the rate, against the gradient's sign."""
    model, ids = Constant(), batches(1)[0]
    gradient = torch.autograd.grad(next_token_loss(model, ids), model.logits)[0]
    fit(model, [ids], 0.01)
    moved = gradient != 0
    expected = -0.01 * gradient.sign()
    torch.testing.assert_close(model.logits.detach()[moved], expected[moved], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("warmup", "rates"), [(0, [1, 1, 1]), (2, [1 / 3, 2 / 3, 1])])
def test_warm_up_climbs_in_equal_steps(warmup, rates, monkeypatch):
    seen = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: seen.append(self.param_groups[0]["lr"]) or step(self))
    fit(Constant(), batches(3), 0.3, warmup)
    assert seen == pytest.approx([0.3 * r for r in rates])


def test_a_stack_learns_and_repeats_itself():
    again = batches(1).expand(60, 3, 6)
    first, second = (fit(small(), again, 0.01) for _ in range(2))
    assert first == second, "training is not deterministic"
    assert first[-1] < 0.5 * first[0], "nothing learned"


def test_a_divergence_is_reported_and_ends():
    model = Constant()
    model.logits.data[0] = math.nan
    losses = fit(model, batches(4), 0.1)
    assert len(losses) == 4 and all(math.isnan(loss) for loss in losses)
