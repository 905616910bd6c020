"""What every training has: loss, optimizer and schedule by their formulas."""

import math

import normgeom as ng
import pytest
import torch
from norm_checks import close
from normgeom.training.loop import adamw, next_token_loss, warmup_cosine
from normgeom.training.twins import twin
from tiny_models import token_ids
from transformers import GPT2Config

CONFIG = GPT2Config(
    vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    bos_token_id=None, eos_token_id=None,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_by_its_formula(dtype):
    model, ids = ng.twins(CONFIG, seed=3)[1].to(dtype), token_ids(3, 9)
    logits = model(ids).logits
    chosen = logits[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    expected = (logits[:, :-1].exp().sum(-1).log() - chosen).mean()
    for network in (model, lambda ids: model(ids).logits):
        got = next_token_loss(network, ids)
        assert got.dtype == dtype
        close(got, expected, 1e-5 if dtype == torch.float32 else 1e-13, "loss", "A mean over L instead of L - 1?")


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_matrices_decay_and_vectors_do_not(norm):
    """Trainer's own grouping would let the gains of RMSNorm decay, and not those of nn.LayerNorm."""
    model = twin(CONFIG, 3, norm)
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = adamw(model, lr=0.01, decay=0.5)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) and set(held) == set(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        factor = 1 - 0.01 * 0.5 if p.dim() == 2 else 1.0
        close(p, before[name] * factor, 1e-8, name, "Decay of a gain or a bias? None of a matrix?")


@pytest.mark.parametrize(("steps", "warmup"), [(1, 1), (9, 1), (10, 1), (39, 3), (20_000, 2000), (100_000, 2000)])
def test_the_schedule_by_its_formula(steps, warmup):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    factor = warmup_cosine(optimizer, steps).lr_lambdas[0]
    for step in {0, 1, 5, warmup - 1, warmup, (warmup + steps) // 2, steps - 1} & set(range(steps)):
        wave = math.cos(math.pi * (step - warmup) / max(1, steps - warmup))
        expected = (step + 1) / warmup if step < warmup else 0.1 + 0.9 * (1 + wave) / 2
        assert factor(step) == pytest.approx(expected, abs=1e-12), f"step {step} of {steps}"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 / warmup), "the first step has no rate, or a full one"
