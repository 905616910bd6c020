"""The logit lens against models that are cut off behind a block, and its divergence against torch's."""

import pytest
import torch
import torch.nn.functional as F
from norm_checks import draw
from normgeom_lab.common.parts import Predictions
from normgeom_lab.common.tiny import random_model
from normgeom_lab.reading import divergence, lenses
from torch import nn

IDS = torch.tensor([[3, 8, 2, 40, 17, 5], [11, 4, 33, 6, 9, 21]])


def read():
    return lenses(Predictions.of(random_model("gpt2", 0), IDS))


def logits_of(model):
    with torch.no_grad():
        return model(IDS).logits[:, 1:-1]


@pytest.mark.parametrize("blocks", (0, 1, 2))
def test_its_own_scale_is_the_model_cut_off_there(blocks):
    model = random_model("gpt2", 0)
    prediction = logits_of(model)
    model.transformer.h = nn.ModuleList(list(model.transformer.h)[:blocks])
    cut = logits_of(model)
    row = read().loc[f"m{blocks}" if blocks else "wpe"]
    log_p, log_q = (z.double().log_softmax(-1).flatten(0, 1) for z in (prediction, cut))
    expected = float(F.kl_div(log_q, log_p, reduction="batchmean", log_target=True))
    assert row["KL, own scale / nats"] == pytest.approx(expected, rel=1e-10), "The stream before the part? The scale?"
    agreeing = float((cut.argmax(-1) == prediction.argmax(-1)).double().mean())
    assert row["first choice right, own"] == agreeing


def test_the_final_scale_is_a_model_whose_norm_divides_by_it():
    """Frozen, the lens is affine in the stream: W_U (γ ⊙ Πh/s + β), by hand."""
    model, table = random_model("gpt2", 0), read()
    run = Predictions.of(model, IDS)
    x = sum(run.parts.values())
    s = (x.var(-1, correction=0, keepdim=True) + model.config.layer_norm_epsilon).sqrt()
    norm, head = model.transformer.ln_f, model.lm_head.weight
    h = 0
    for name, part in run.parts.items():
        h = h + part
        own = F.layer_norm(h, (16,), norm.weight, norm.bias, norm.eps) @ head.T
        final = ((h - h.mean(-1, keepdim=True)) / s * norm.weight + norm.bias) @ head.T
        row = table.loc[name]
        spread = (h.var(-1, correction=0) + norm.eps).sqrt()
        assert row["scale"] == pytest.approx(float(spread.mean().detach()), rel=1e-10), "The final scale shown?"
        expected = divergence(run.logits, final.detach())
        assert row["KL, final scale / nats"] == pytest.approx(expected, rel=1e-8, abs=1e-12), "Its own scale?"
        same = {"first choice right, final": (final, run.logits), "both choose the same": (own, final)}
        for column, (a, b) in same.items():
            assert row[column] == float((a.argmax(-1) == b.argmax(-1)).double().mean()), column


def test_behind_the_last_part_it_is_the_model():
    last = read().iloc[-1]
    assert last["KL, own scale / nats"] == pytest.approx(0, abs=1e-12)
    assert last["KL, final scale / nats"] == pytest.approx(0, abs=1e-12), "The scale of another stream?"
    assert (last[["first choice right, own", "first choice right, final", "both choose the same"]] == 1).all()


def test_divergence_is_torchs_and_not_the_other_way_round():
    z, others = 3 * draw(4, 5, 9), draw(4, 5, 9, seed=1)
    p, q = (torch.distributions.Categorical(logits=v) for v in (z, others))
    expected = float(torch.distributions.kl_divergence(p, q).mean())
    assert divergence(z, others) == pytest.approx(expected, rel=1e-12), "p and q interchanged? Bits?"
    assert divergence(z, others) != pytest.approx(divergence(others, z), rel=1e-3)
    assert divergence(z, z + 7) == pytest.approx(0, abs=1e-13), "A number added to all logits changes nothing."
