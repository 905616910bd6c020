"""Attention heads against models that are run without them, and a part that fades against shorter streams."""

import pytest
import torch
from norm_checks import close, draw
from normgeom.norms.functions import layer_norm, rms_norm
from normgeom_lab import reading as lab
from normgeom_lab.common.parts import components
from normgeom_lab.common.stream import writers
from normgeom_lab.common.tiny import random_model

IDS = torch.tensor([[3, 8, 2, 40, 17, 5], [11, 4, 33, 6, 9, 21]])


@pytest.mark.parametrize("norm", (layer_norm, rms_norm))
def test_fading_against_a_stream_with_less_of_the_part(norm):
    c, others, w = draw(3, 5, 16, seed=1).unbind(0)
    x, eps = c + others, 1e-3
    lead = lambda stream: float((w * norm(stream, eps=eps)).sum(-1).mean())  # noqa: E731
    found, near = lab.faded(c, x, w, eps, norm is layer_norm), dict(rel=0, abs=1e-12)
    assert list(found.index) == [k / 20 for k in range(20, -1, -1)]
    for kept, row in found.loc[[1.0, 0.4, 0.0]].iterrows():
        assert row.logit == pytest.approx(lead(x - (1 - kept) * c), **near), "more taken out than said?"
        assert row.others == pytest.approx(row.logit - row.part, **near)
    assert found.part[0.0] == 0 and found.part[1.0] == pytest.approx(found.logit[1.0] - found.frozen[0.0], **near)
    slope = (lead(x) - lead(x - 1e-6 * c)) / 1e-6
    assert found.tangent[1.0] - found.tangent[0.0] == pytest.approx(slope, rel=1e-3, abs=1e-4), "another's slope?"
    assert found.tangent[1.0] == pytest.approx(found.logit[1.0])


@pytest.mark.parametrize("family", ("gpt2", "opt", "gpt_neox", "gptj", "llama"))
def test_a_head_is_what_a_model_without_it_lacks(family):
    model = random_model(family, 0)
    writes, parts, attention = lab.head_writes(model, IDS), components(model, IDS), writers(model)["a2"]
    assert list(writes) == ["1.1", "1.2", "2.1", "2.2"], "Blocks and heads count from 1."
    bias = getattr(attention, "bias", None)
    total = writes["2.1"] + writes["2.2"] + (0 if bias is None else bias.detach())
    close(total, parts["a2"], 1e-12, "the heads' sum", "The bias in every head? Heads of another block?")
    with torch.no_grad():
        (attention.weight[:8] if family == "gpt2" else attention.weight[:, :8]).zero_()
    without = parts["a2"] - components(model, IDS)["a2"]
    close(writes["2.1"], without, 1e-12, "a model without it", "Heads interchanged? Rows for columns?")
