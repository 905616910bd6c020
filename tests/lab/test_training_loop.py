"""The training loop of the chapters: losses and steps by their formulas."""

import math

import normgeom as ng
import pytest
import torch
from norm_checks import close
from normgeom.models.twins import twin
from normgeom_lab.common.loop import adamw, fit, next_token_loss, random_windows, train, warmup_cosine
from tiny_models import token_ids
from transformers import GPT2Config

CONFIG = GPT2Config(
    vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    bos_token_id=None, eos_token_id=None,
)  # fmt: skip


def batches(count):
    """A cycle of tokens: learnt within a few dozen steps."""
    for i in range(count):
        yield (torch.arange(16) + torch.arange(4)[:, None] + i) % 8


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_training_lowers_the_loss(which):
    model = ng.twins(CONFIG, seed=3)[which]
    losses = train(model, batches(90), 60, 1e-2, None)
    assert len(losses) == 60 and all(isinstance(loss, float) for loss in losses)
    assert losses[0] == pytest.approx(math.log(64), abs=0.5), "the first loss is that of a uniform guess, in nats"
    assert losses[-1] < 0.5 * losses[0], f"from {losses[0]:.2f} to {losses[-1]:.2f}"
    assert not any(module.training for module in model.modules()), "left in evaluation mode"


def by_hand(model, batches, lr, clip):
    """Losses, rates and lengths of gradients of AdamW with the schedule, by their formulas; the model is trained."""
    parameters, steps = list(model.parameters()), len(batches)
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    warmup, found = min(2000, max(1, steps // 10)), []
    for step, ids in enumerate(batches):
        loss = next_token_loss(model, ids)
        gradients = torch.autograd.grad(loss, parameters)
        length = sum(g.square().sum() for g in gradients).sqrt()
        wave = math.cos(math.pi * (step - warmup) / max(1, steps - warmup))
        now = lr * ((step + 1) / warmup if step < warmup else 0.55 + 0.45 * wave)
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                g = g * min(1.0, clip / (length + 1e-6))
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.95).add_(0.05 * g * g)
                if p.dim() > 1:
                    p.mul_(1 - 0.1 * now)
                p.sub_(now * m / (1 - 0.9 ** (step + 1)) / ((v / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8))
        found.append((float(loss.detach()), now, float(length)))
    return torch.tensor(found, dtype=torch.float64).T


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_training_is_what_its_formulas_say(norm):
    """20 steps, so that the warm-up has two, and gradients that are clipped; in float64."""
    ours, truth = (twin(CONFIG, 3, norm).double() for _ in range(2))
    for network in (ours, truth):
        network.transformer.wte.weight.data *= 20  # gradients longer than 1
    expected, _, lengths = by_hand(truth, list(batches(20)), 1e-2, 1.0)
    assert lengths.min() < 1 < lengths.max(), f"clipping makes no difference, or all of it: {lengths}"
    losses = torch.tensor(train(ours, batches(20), 20, 1e-2, None), dtype=torch.float64)
    close(losses, expected, 1e-9, "losses", "β of Adam? Warm-up?")
    for (name, p), q in zip(ours.named_parameters(), truth.parameters(), strict=True):
        close(p, q, 1e-9, name, "Decay of gains? Clipping? Cosine? ε of Adam?")


def test_a_step_for_each_batch_and_hooks_of_the_optimizer():
    model, seen = ng.twins(CONFIG, seed=3)[0], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: seen.append(float(next_token_loss(model, next(batches(1))).detach())))
    losses = fit(model, [next(batches(1))] * 3, optimizer)
    assert losses.shape == (3,) and not losses.requires_grad
    close(losses[1:], torch.tensor(seen[:2]), 1e-6, "losses", "Taken after the step?")


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
    optimizer = adamw(model, lr=0.01)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) and set(held) == set(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        factor = 1 - 0.01 * 0.1 if p.dim() == 2 else 1.0
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


def test_random_windows_are_pieces_of_the_text():
    stream, starts = random_windows(torch.arange(100, 150), length=6, batch_size=4, seed=0), set()
    for _ in range(200):
        batch = next(stream)
        assert batch.shape == (4, 6)
        assert torch.equal(batch - batch[:, :1], torch.arange(6).expand(4, 6)), "consecutive tokens"
        starts.update(batch[:, 0].tolist())
    assert starts == set(range(100, 145)), "each place is drawn, the last included"


def test_random_windows_are_fixed_by_their_seed():
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(drawn))  # the global generator plays no part
        stream = random_windows(torch.arange(1000), 8, 4, seed)
        drawn.append(torch.stack([next(stream) for _ in range(3)]))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0][0], drawn[0][1]), "each batch is new"
