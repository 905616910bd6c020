"""Training without what lies along 1, against steps that are written out by hand."""

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, rounding
from normgeom.models.flow import stream_writers
from normgeom.models.gpt2 import gpt2
from normgeom_lab.training import centre, descend, next_token_loss, unbiased_twins
from tiny_models import token_ids
from torch import nn

CONFIG = gpt2(vocabulary=64, length=16, width=12, layers=1, heads=2)
IDS = token_ids(2, 8)
RATE = 0.1


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def along_one(parameters):
    return torch.cat([p.detach().sum(-1).flatten() for p in parameters])


def gradients(model):
    loss = next_token_loss(model, IDS)
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))


def writer_names(model):
    ids = {id(p) for p in stream_writers(model)}
    return {name for name, p in model.named_parameters() if id(p) in ids}


def test_twins_that_satisfy_the_theorem():
    for model, kind in zip(unbiased_twins(CONFIG, 3), ("layer", "rms"), strict=True):
        norms = [m for name, m in model.named_modules() if name.rpartition(".")[2].startswith("ln_")]
        assert all(norm.weight is not None and getattr(norm, "bias", None) is None for norm in norms), "a β is left"
        assert min(float((norm.weight.detach() - 1).abs().max()) for norm in norms) > 0.05, "gains at their start"
        assert model.lm_head.weight is not model.transformer.wte.weight, "the head is tied"
        assert {p.dtype for p in model.parameters()} == {torch.float64}
        ids = token_ids(1, 12)
        assert {site.kind for site in ng.find_norms(model, ids)} == {kind}
    layer, rms = (model.state_dict() for model in unbiased_twins(CONFIG, 3))
    assert layer.keys() == rms.keys()
    for name, value in layer.items():
        assert torch.equal(value, rms[name]), f"{name} differs: not the same draw for both"


def test_centring_takes_the_mean_over_the_last_axis():
    a, b = torch.randn(3, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    expected = [t @ (torch.eye(5, dtype=torch.float64) - 0.2) for t in (a, b)]
    centre([a, b])
    for got, wanted in zip((a, b), expected, strict=True):
        close(got, wanted, 4 * rounding(wanted, torch.float64), "centred", "Another axis? Not in place?")


def test_the_loss_is_that_of_the_next_token():
    model = unbiased_twins(CONFIG, 3)[0]
    logits = model(IDS).logits
    expected = torch.stack([-F.log_softmax(logits[i, t], -1)[IDS[i, t + 1]] for i in range(2) for t in range(7)]).mean()
    close(next_token_loss(model, IDS), expected, 4 * rounding(expected, torch.float64, 64), "loss", "Not shifted?")
    assert next_token_loss(model, IDS).dtype == torch.float64, "computed in float32"


def test_one_step_by_hand():
    """θ − η∇L, with the parts left out that are named."""
    for leave_out in ((), ("gradients",), ("steps",)):
        start = unbiased_twins(CONFIG, 3)[1]
        got = dict(descend(start, IDS, sgd, leave_out, updates=1).model.named_parameters())
        of_loss = gradients(start)
        for name, p in start.named_parameters():
            g, writes = of_loss[name], name in writer_names(start)
            g = g - g.mean(-1, keepdim=True) if "gradients" in leave_out and writes else g
            expected = p.detach() - RATE * g
            if "steps" in leave_out and writes:
                expected = expected - expected.mean(-1, keepdim=True)
            close(got[name], expected, 4 * rounding(expected, torch.float64), f"{name}, {leave_out}", "Left out late?")


def test_gradients_are_clipped_after_what_is_left_out():
    start = unbiased_twins(CONFIG, 3)[1]
    of_loss = gradients(start)
    for name in writer_names(start):
        of_loss[name] = of_loss[name] - of_loss[name].mean(-1, keepdim=True)
    length = torch.stack([g.norm() for g in of_loss.values()]).norm()
    moved = descend(start, IDS, sgd, ("gradients",), clip=0.01, updates=1).model
    step = [q.detach() - p.detach() for p, q in zip(start.parameters(), moved.parameters(), strict=True)]
    # torch divides by the length plus 1e-6
    expected = RATE * 0.01 * float(length / (length + 1e-6))
    assert float(torch.stack([s.norm() for s in step]).norm()) == pytest.approx(expected, rel=1e-9), "clipped before?"


def test_losses_are_those_before_each_update():
    start = unbiased_twins(CONFIG, 3)[0]
    found = descend(start, IDS, sgd, updates=3)
    assert found.losses.shape == (3,) and found.losses.dtype == torch.float64
    for i in range(3):
        before = descend(start, IDS, sgd, updates=i).model if i else start
        assert float(found.losses[i]) == pytest.approx(next_token_loss(before, IDS).item(), rel=1e-12)


def test_the_model_itself_is_left_alone():
    start = unbiased_twins(CONFIG, 3)[1]
    before = along_one(stream_writers(start))
    descend(start, IDS, sgd, ("gradients", "steps"))
    assert torch.equal(along_one(stream_writers(start)), before) and all(p.grad is None for p in start.parameters())


def test_layer_norms_writers_keep_their_part_along_one_and_rms_norms_do_not():
    for model, keeps in zip(unbiased_twins(CONFIG, 3), (True, False), strict=True):
        before = along_one(stream_writers(model))
        off = float((along_one(stream_writers(descend(model, IDS, sgd).model)) - before).abs().max())
        assert (off < 1e-12) == keeps, f"moved by {off:.1e}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(leave_out=("weights", "steps")), r"^leave_out: expected some of gradients, steps, got weights$"),
        (dict(updates=0), r"^updates: expected at least 1, got 0$"),
    ],
)
def test_what_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        descend(unbiased_twins(CONFIG, 3)[0], IDS, sgd, **given)


def test_another_model_is_refused():
    with pytest.raises(TypeError, match=r"^example_inputs: none given, and none can be made for a Linear$"):
        descend(nn.Linear(2, 2), IDS, sgd)
