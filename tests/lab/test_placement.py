"""Chapter 6's measurements: against losses differentiated text by text, and models computed by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, draw, rounding
from normgeom_lab import placement as lab
from normgeom_lab.common.growth import seeded_stack, shaken, unroll
from normgeom_lab.common.loop import random_windows
from normgeom_lab.common.stacks import PLACEMENTS, Attention, LanguageModel, Stack, normalise_weights

WIDTH = 16
EACH = pytest.mark.parametrize("placement", PLACEMENTS)
TEXT = torch.randint(256, (500,), generator=torch.Generator().manual_seed(0))


def bound(x):
    """Through a few sublayers of some fifty roundings each."""
    return 4 * 300 * rounding(x, torch.float64, 64)


def small(placement="pre", seed=0, layers=2):
    """Gains and biases drawn too."""
    return shaken(seeded_stack(seed, WIDTH, layers, placement).double(), torch.Generator().manual_seed(1))


# ---- gradients at initialisation ----


@EACH
def test_block_gradients_text_by_text(placement):
    stack, x, head, targets = small(placement), draw(3, 4, WIDTH), draw(7, WIDTH, seed=1), torch.tensor([2, 0, 6])
    lengths, sizes = lab.block_gradients(stack, x, head, targets)
    matrices = [block.mlp.branch[2].weight for block in stack.blocks]
    expected = torch.zeros(2, dtype=torch.float64)
    for text, target in zip(x, targets, strict=True):
        loss = F.cross_entropy(stack(text)[-1] @ head.T, target)
        expected += torch.stack([g.square().sum().sqrt() for g in torch.autograd.grad(loss, matrices)]) / 3
    close(lengths, expected, bound(expected), "lengths", "Length of the mean for the mean of lengths?")
    behind = torch.stack([t.detach().square().mean().sqrt() for t in stack.streams(x)[2::2]])
    close(sizes, behind, bound(behind), "sizes", "Before the block? A mean square for its root?")
    assert all(m.grad is None for m in matrices), "gradients left in the stack"


# ---- growth, attention and logits ----


def test_attention_entropy_head_by_head():
    attention, x = Attention(8, 2, {}).double(), draw(5, 8)
    q, k, _ = (x @ attention.in_proj.weight.T + attention.in_proj.bias).detach().chunk(3, -1)
    ratios = []
    for head in (slice(0, 4), slice(4, 8)):
        for t in range(1, 5):
            p = (q[t, head] @ k[: t + 1, head].T / 2).softmax(0)
            ratios.append(-float((p * p.log()).sum()) / math.log(t + 1))
    expected = torch.tensor(ratios).double().mean()
    close(lab.attention_entropy(attention, x), expected, 1e-6, "entropy", "Scaled by √d? Over log of the whole length?")
    attention.in_proj.weight.data[:16] = 0
    assert float(lab.attention_entropy(attention, x)) == pytest.approx(1.0, abs=1e-12), "Of the first position too?"
    attention.in_proj.weight.data[:16] = 1e6 * draw(16, 8)
    assert float(lab.attention_entropy(attention, x)) < 1e-3, "Of scores for shares?"


def test_the_factor_of_a_geometric_series():
    squares = torch.cat([torch.tensor([9.0, 1.0, 7.0]), 5 * 3.0 ** torch.arange(4.0)]).double()
    assert lab.factor_a_block(squares) == pytest.approx(3.0, rel=1e-12), "The first half too? One step too many?"


# ---- what the stream is made of ----


@EACH
def test_summands_add_up_to_the_centred_stream(placement):
    """Summands carried along by hand; shares are of their mean squared lengths."""
    stack, x = seeded_stack(0, WIDTH, 3, placement).double(), draw(2, 5, WIDTH)
    streams, shares = [t.detach() for t in stack.streams(x)], lab.composition(stack, x)
    parts = [x]
    for step, share, stream in zip(unroll(stack, x), shares, streams[1:], strict=True):
        divisor = 1.0
        if PLACEMENTS[placement].sum:
            divisor = (step.sum.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        parts = [part * step.sublayer.alpha / divisor for part in parts] + [step.added / divisor]
        centred = [part - part.mean(-1, keepdim=True) for part in parts]
        whole = stream - stream.mean(-1, keepdim=True)
        close(sum(centred), whole, bound(whole), "sum of the summands", "Test's own slip")
        squares = torch.stack([part.square().sum(-1).mean() for part in centred])
        close(share, squares / squares.sum(), bound(share), "shares", "Means left in? α or 1/s left out?")


@pytest.mark.parametrize("placement", ["post", "deepnorm"])
def test_path_factors_are_the_gain_of_a_direction_that_no_norm_removes(placement):
    """Against automatic differentiation of the norms alone, along a direction orthogonal to all that they remove."""
    stack, x = seeded_stack(3, WIDTH, 3, placement).double(), draw(5, WIDTH)
    factor, law = lab.path_factors(stack, x)
    sums = [step.sum for step in unroll(stack, x)]
    for t in range(5):
        removed = torch.stack([torch.ones(WIDTH, dtype=torch.float64), *(total[t] for total in sums)])
        v = moved = torch.linalg.svd(removed).Vh[-1]
        for sublayer, total in zip(stack.sublayers, sums, strict=True):
            moved = torch.func.jvp(sublayer.sum, (total[t],), (sublayer.alpha * moved,))[1].detach()
        close(moved, factor[t] * v, 1e-10, f"{placement}, token {t}", "α left out? ε? The variance with d−1?")
    pairs = zip(stack.sublayers, stack.streams(x)[:-1], strict=True)
    spread = [sublayer.branch(stream).var(-1, correction=0) for sublayer, stream in pairs]
    expected = torch.stack([1 + v / stack.sublayers[0].alpha ** 2 for v in spread]).prod(0).rsqrt().detach()
    close(law, expected, 1e-12, "the law", "α² left out? A root?")


# ---- byte models ----


def model_and_ids(placement="pre", layers=3):
    torch.manual_seed(0)
    model = LanguageModel(11, 9, Stack(8, 2, layers, placement)).double()
    return model, torch.randint(11, (4, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("placement", ["post", "sphere"])
def test_training_is_adam_on_windows_of_the_text(placement):
    """Adam by its formula, a warm-up of two steps, weights brought to the sphere again after each."""
    model, losses = lab.train_bytes(TEXT, placement, 1, 1e-2, 3, seed=5, warmup=2, batch=2)
    torch.manual_seed(5)
    other = LanguageModel(256, 65, Stack(64, 4, 1, placement))
    settle = normalise_weights if placement == "sphere" else lambda model: model
    settle(other)
    ps, batches = list(other.parameters()), random_windows(TEXT, 65, 2, 5)
    first, second = ([torch.zeros_like(p) for p in ps] for _ in range(2))
    for t in (1, 2, 3):
        ids = next(batches)
        loss = F.cross_entropy(other(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        assert losses[t - 1] == pytest.approx(loss.item(), rel=1e-5), "another seed, batch or rate?"
        for p, g, m, v in zip(ps, torch.autograd.grad(loss, ps), first, second, strict=True):
            m.lerp_(g, 0.1)
            v.lerp_(g.square(), 0.02)
            p.data -= 1e-2 * t / 3 * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-8)
        settle(other)
    for p, q in zip(model.parameters(), ps, strict=True):
        assert p.dtype == torch.float32
        torch.testing.assert_close(p, q, rtol=1e-3, atol=2e-3, msg="not trained alike")


def test_the_share_that_varies():
    model, ids = model_and_ids()
    x = model.stack(model.tokens(ids) + model.positions.weight[:7]).detach().reshape(-1, 8)
    expected = float((x - x.mean(0)).square().sum() / x.square().sum())
    assert lab.varying_share(model, ids) == pytest.approx(expected, abs=1e-6), "Before the final norm? Of a window?"


def test_gradients_of_the_first_and_last_matrix():
    model, ids = model_and_ids()
    logits = model(ids[:, :-1]).log_softmax(-1)
    (-logits.gather(-1, ids[:, 1:, None]).mean()).backward()
    sizes = [block.mlp.branch[2].weight.grad.square().sum().sqrt() for block in model.stack.blocks]
    expected = float(sizes[0] / sizes[2])
    assert lab.first_over_last(model, ids) == pytest.approx(expected, rel=1e-10), "Last over first? W₁?"
