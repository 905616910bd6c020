"""Rounding in norms of published models, tried on a tiny Llama: each number against a longer way to it."""

import copy
import math

import pandas as pd
import pytest
import torch
from drawn_weights import perturbed
from transformers import LlamaConfig, LlamaForCausalLM

from experiments import real_quantised, real_rounding
from experiments.real_quantised import quantised
from experiments.real_rounding import SHIFT, factor

IDS = torch.randint(50, (4, 9), generator=torch.Generator().manual_seed(5))
SIZES = dict(vocab_size=50, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)


@pytest.fixture
def llama(monkeypatch):
    made = perturbed(lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=3)))
    monkeypatch.setattr(real_rounding, "language_model", lambda name: (made, None))
    monkeypatch.setattr(real_rounding, "blocks", lambda tokenizer, part, count, length: IDS)
    monkeypatch.setattr(real_rounding, "BLOCKS", 4)
    monkeypatch.setattr(real_rounding, "LENGTH", 9)
    return made


def stream(model):
    with torch.no_grad():
        states = model.model(IDS, output_hidden_states=True).hidden_states
    return [h[:, 1:].double() for h in states[1:]]  # transformers' last one is behind the last norm


def test_statistics_rounded_at_the_end_at_each_step_and_of_scaled_rows():
    ones, bf16 = torch.ones(1, 300), torch.bfloat16
    assert factor(ones, 0.0, bf16).item() == 1
    stopped = torch.tensor(256 / 300).to(bf16).rsqrt()  # the sum of ones ends at 256 (prop-stagnation)
    assert factor(ones, 0.0, bf16, "sum").item() == stopped.float().item()
    row = 600 * torch.tensor([[1.0, -1.0, 0.5, 0.25]])
    assert factor(row, 1e-6, torch.float16).item() == 0, "the square of 600 is infinite"
    root = float(row.square().mean().sqrt())
    assert factor(row, 1e-6, torch.float16, "scaled").item() == pytest.approx(1 / root, rel=1e-3)
    small = torch.full((1, 4), 2.0**-7)  # ε is of the size of its mean square
    assert factor(small, 2.0**-14, torch.float16, "scaled").item() == pytest.approx(2**6.5, rel=1e-3)


def test_effects_of_scales_are_those_of_gains(llama):
    found = pd.DataFrame(real_rounding.by_depth("llama")["published-rounding"])
    larger = copy.deepcopy(llama)
    for name, parameter in larger.named_parameters():
        parameter.data *= 1 + SHIFT if "norm" in name else 1
    changed, base = stream(larger), stream(llama)
    for block in (0, 1):
        off = ((changed[block] - base[block]).norm(dim=-1) / base[block].norm(dim=-1)).square().mean().sqrt()
        assert found.together[block] == pytest.approx(float(off) / SHIFT, rel=0.01)
    assert len(found) == 4 and found.block.to_list() == [1, 2, 3, 4]
    assert (found.statistics < 0.03).all() and (found.statistics > 10 * 2e-6).all()


def test_quantised_norms_of_a_model(llama):
    y = torch.tensor([[7.0, 3.4, -0.6], [70.0, 6.0, -4.0]])
    assert torch.allclose(quantised(y, 4), torch.tensor([[7.0, 3.0, -1.0], [70.0, 10.0, 0.0]])), "steps by rows"
    records = {name: pd.DataFrame(rows) for name, rows in real_quantised.int8_and_int4("llama").items()}
    found, end = (records[f"published-quantised{part}"].set_index(["form", "bits"]) for part in ("", "-end"))
    assert ((found.ratio_q50 - 1).abs() < 0.15).all(), "errors of what the matrices compute are as predicted"
    assert (end.xs(8, level="bits").kl < end.xs(4, level="bits").kl).all()
    assert found.measured["folded", 4] / found.measured["folded", 8] == pytest.approx(127 / 7, rel=0.2)
    assert math.isclose(found.crest["folded", 8] ** 2 / 16, found.share["folded", 8], rel_tol=0.1), "κ² = s d"
