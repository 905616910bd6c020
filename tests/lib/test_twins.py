"""twins and train: the norm is the only difference, and training trains."""

import math
import random

import normgeom as ng
import numpy as np
import pytest
import torch
from norm_checks import close
from normgeom.models.twins import train
from tiny_models import token_ids
from torch import nn
from transformers import GPT2Config

CONFIG = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=None, eos_token_id=None)


def batches(count):
    """A cycle of tokens: learnt within a few dozen steps."""
    for i in range(count):
        yield (torch.arange(16) + torch.arange(4)[:, None] + i) % 8


def test_the_norm_is_the_only_difference():
    layer, rms = ng.twins(CONFIG, seed=3)
    mine, theirs = layer.state_dict(), rms.state_dict()
    norms = {name for name, module in layer.named_modules() if isinstance(module, nn.LayerNorm)}
    assert len(norms) == 5
    assert set(mine) - set(theirs) == {f"{name}.bias" for name in norms}, "only the shifts of the norms are gone"
    assert set(theirs) <= set(mine)
    for key, value in theirs.items():
        assert torch.equal(value, mine[key]), f"{key} differs"
    types = {name: type(module) for name, module in rms.named_modules()}
    for name, module in layer.named_modules():
        assert types[name] is (ng.RMSNorm if name in norms else type(module)), f"{name} is a {types[name].__name__}"


def test_what_the_norms_do():
    layer, rms = ng.twins(CONFIG, seed=3)
    assert [(s.name, s.kind, s.eps) for s in ng.find_norms(layer)] == [
        (s.name, "layer", s.eps) for s in ng.find_norms(rms)
    ]
    assert {(s.kind, s.eps) for s in ng.find_norms(rms)} == {("rms", 1e-5)}, "ε must be that of the LayerNorm"


def test_the_twins_share_no_memory():
    layer, rms = ng.twins(CONFIG, seed=3)
    mine = {p.data_ptr() for p in layer.parameters()}
    assert not mine & {p.data_ptr() for p in rms.parameters()}, "training one would train the other"


def test_each_keeps_its_head_tied():
    for model in ng.twins(CONFIG, seed=3):
        assert model.lm_head.weight is model.transformer.wte.weight


def test_mode_dtype_and_device():
    for model in ng.twins(CONFIG, seed=3):
        assert not any(module.training for module in model.modules()), "evaluation mode everywhere"
        assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}


def test_the_seed_decides():
    (first, _), (again, _), (other, _) = (ng.twins(CONFIG, seed=s) for s in (3, 3, 4))
    ids = token_ids(1, 8)
    assert torch.equal(first(ids).logits, again(ids).logits)
    assert not torch.equal(first(ids).logits, other(ids).logits)


def test_global_generators_are_untouched():
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    ng.twins(CONFIG, seed=3)
    assert torch.equal(torch.get_rng_state(), before[0]), "torch's generator moved"
    assert random.getstate() == before[1], "Python's generator moved"
    assert np.array_equal(np.random.get_state()[1], before[2]), "numpy's generator moved"


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_training_lowers_the_loss(which):
    model = ng.twins(CONFIG, seed=3)[which]
    losses = train(model, batches(60), steps=60, learning_rate=1e-2)
    assert len(losses) == 60 and all(isinstance(loss, float) for loss in losses)
    assert losses[0] == pytest.approx(math.log(64), abs=0.5), "the first loss is that of a uniform guess, in nats"
    assert losses[-1] < 0.5 * losses[0], f"from {losses[0]:.2f} to {losses[-1]:.2f}"
    assert not any(module.training for module in model.modules()), "left in evaluation mode"


def test_training_is_deterministic():
    config = GPT2Config(**{**CONFIG.to_dict(), "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})
    runs = [train(ng.twins(config, seed=3)[0], batches(5), steps=5, learning_rate=1e-3) for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_learning_rate_warms_up_and_comes_down():
    """With Adam a step is about as long as the learning rate: the steps of one weight trace the schedule."""
    config = GPT2Config(**{**CONFIG.to_dict(), "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})
    model, rates = ng.twins(config, seed=3)[0], []
    step = torch.optim.AdamW.step

    def noted(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", noted)
        train(model, batches(40), steps=40, learning_rate=1e-3)
    warmup, after = rates[:4], rates[4:]
    close(torch.tensor(warmup), torch.tensor([0.25, 0.4375, 0.625, 0.8125]) * 1e-3, 1e-9, "warm-up", "Not linear?")
    cosine = [1e-4 + 4.5e-4 * (1 + math.cos(math.pi * i / 36)) for i in range(36)]
    close(torch.tensor(after), torch.tensor(cosine), 1e-9, "after it", "Cosine to a tenth of the peak?")


def test_too_few_batches():
    with pytest.raises(ValueError, match=r"^batches: expected 10, got 4"):
        train(ng.twins(CONFIG, seed=3)[0], batches(4), steps=10, learning_rate=1e-3)


def test_more_batches_than_steps():
    assert len(train(ng.twins(CONFIG, seed=3)[0], batches(9), steps=3, learning_rate=1e-3)) == 3


def test_a_single_step():
    assert len(train(ng.twins(CONFIG, seed=3)[0], batches(1), steps=1, learning_rate=1e-3)) == 1


def test_the_default_dtype_does_not_matter():
    expected = ng.twins(CONFIG, seed=3)
    torch.set_default_dtype(torch.float64)
    try:
        got = ng.twins(CONFIG, seed=3)
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(expected, got, strict=True):
        for name, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[name]), f"{name}: drawn in the default dtype?"
