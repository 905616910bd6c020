"""Growth of the stream against formulas written out, signs tried one by one, and attention with known shares."""

import itertools
import math

import pytest
import torch
from norm_checks import close, draw, rounding
from normgeom_lab.common.growth import even_stack, growth, mean_square_over_signs, seeded_stack
from normgeom_lab.common.stacks import Attention
from normgeom_lab.placement import (
    attention_entropy,
    factor_a_block,
    logit_statistics,
    mean_logit_statistics,
    mean_saturation,
    mlp_mean_square,
    saturation,
    sign_patterns,
)

WIDTH = 16


def bound(x):
    """Through a few sublayers of some fifty roundings each."""
    return 4 * 300 * rounding(x, torch.float64, 64)


def stack_of(placement="pre", seed=0, **rest):
    return seeded_stack(seed, WIDTH, 2, placement, **rest).double()


def test_growth_position_by_position():
    stacks, x = [stack_of(seed=0), stack_of("post", seed=1)], 2 * draw(2, 3, WIDTH)
    got = growth(iter(stacks), x)
    expected = {name: torch.zeros(2, 5 if name in ("square", "cosine") else 4).double() for name in got._fields}
    for row, stack in enumerate(stacks):
        streams = [t.detach().reshape(6, WIDTH) for t in stack.streams(x)]
        for i, now in enumerate(streams):
            for k in range(6):
                a, b = streams[0][k], now[k]
                expected["square"][row, i] += float(b @ b) / WIDTH / 6
                expected["cosine"][row, i] += float(a @ b / (a @ a).sqrt() / (b @ b).sqrt()) / 6
                if i:
                    old = streams[i - 1][k]
                    expected["update"][row, i - 1] += float(((b - old) @ (b - old) / (old @ old)).sqrt()) / 6
                    angle = math.acos(float(old @ b / ((old @ old) * (b @ b)).sqrt()))
                    expected["turn"][row, i - 1] += math.degrees(angle) / 6
    for name, values in expected.items():
        suspects = "A length for a mean square? The stream behind for the one before? Radians? The mean's own ratio?"
        close(getattr(got, name), values, bound(values), name, suspects)


def test_added_is_the_slope_of_the_second_half():
    run = growth([stack_of(seed=0), stack_of(seed=1)], draw(2, 3, WIDTH))
    close(run.added, (run.square[:, 4] - run.square[:, 2]) / 2, 1e-14, "added", "Of the first half? Not per sublayer?")


def test_growth_refuses_nothing_to_run():
    with pytest.raises(ValueError, match="stacks: expected at least one, got none"):
        growth([], draw(2, 3, WIDTH))


@pytest.mark.parametrize("placement", ["pre", "sandwich", "post"])
def test_sign_patterns_one_by_one(placement):
    stack, x = stack_of(placement), draw(3, WIDTH)
    kept = {name: p.clone() for name, p in stack.state_dict().items()}
    last, added = sign_patterns(stack, x)
    assert last.shape == (16,) and added.shape == (16, 4)
    assert all(torch.equal(p, kept[name]) for name, p in stack.state_dict().items()), "the stack has changed"
    for row, signs in enumerate(itertools.product((1, -1), repeat=4)):
        again = stack_of(placement)
        for sign, part in zip(signs, again.sublayers, strict=True):
            end = part.branch.out_proj if isinstance(part.branch, Attention) else part.branch[2]
            end.weight.data *= sign
        streams = [t.detach() for t in again.streams(x)]
        tol = bound(streams[-1].square().sum())
        close(last[row], streams[-1].square().sum(), tol, f"‖x_L‖² for {signs}", "Signs multiplied twice?")
        if placement != "post":
            steps = torch.stack([(b - a).square().sum() for a, b in itertools.pairwise(streams)])
            close(added[row], steps, tol, f"‖b_l‖² for {signs}", "The branch for what its norm made of it?")


def test_sign_patterns_refuse_too_many():
    with pytest.raises(ValueError, match="stack: expected at most 12 sublayers, got 14"):
        sign_patterns(seeded_stack(0, WIDTH, 7, "pre"), draw(2, WIDTH))


def test_the_mean_over_signs_of_numbers():
    """x = 3, branches that add ±1 and then ±2x: (3·4)², (−4)², (3·2)², (−2)², and their mean is 50."""
    got = mean_square_over_signs(torch.tensor([3.0]), [lambda x: x / x, lambda x: 2 * x])
    assert float(got) == (144 + 16 + 36 + 4) / 4, "A sum? Signs of the first branch only?"


def test_rotations_multiply_the_mean_by_one_and_their_square():
    turns = [torch.linalg.qr(draw(8, 8, seed=i))[0] for i in range(3)]
    x = draw(8)
    got = mean_square_over_signs(x, [lambda t, q=q, c=c: c * q @ t for c, q in enumerate(turns, 1)])
    expected = x @ x * 2 * 5 * 10
    close(got, expected, bound(expected), "mean of ‖x‖²", "Cross terms do not cancel?")


def test_the_mlps_mean_square_is_half_of_the_linear_maps():
    n = draw(24)
    got = float(mlp_mean_square(n, 40, 0.2, 0.3, 4000, torch.Generator().manual_seed(0)))
    expected = 40 * 0.3**2 * 0.2**2 * float(n @ n) / 2
    assert got == pytest.approx(expected, rel=0.03), "ReLU left out? τ for τ²? A sum over entries?"
    with pytest.raises(ValueError, match=r"n, hidden, draws: expected .* got \(2, 3\), 4 and 5"):
        mlp_mean_square(draw(2, 3), 4, 0.1, 0.1, 5, torch.Generator())


def test_even_attention_has_entropy_one_and_sharp_none():
    attention = Attention(8, 2, causal=True).double()
    x = draw(2, 6, 8)
    attention.in_proj.weight.data[:16] = 0
    assert float(attention_entropy(attention, x)) == pytest.approx(1.0, abs=1e-12), "Of the first position too?"
    attention.in_proj.weight.data[:16] = 1e6 * draw(16, 8)
    assert float(attention_entropy(attention, x)) < 1e-3, "Of scores for shares?"


def test_attention_entropy_head_by_head():
    attention, x = Attention(8, 2, causal=True).double(), draw(5, 8)
    q, k, _ = (x @ attention.in_proj.weight.T + attention.in_proj.bias).detach().chunk(3, -1)
    ratios = []
    for head in (slice(0, 4), slice(4, 8)):
        for t in range(1, 5):
            p = (q[t, head] @ k[: t + 1, head].T / 2).softmax(0)
            ratios.append(-float((p * p.log()).sum()) / math.log(t + 1))
    expected = torch.tensor(ratios).double().mean()
    close(attention_entropy(attention, x), expected, 1e-6, "entropy", "Scaled by √d? Over log of the whole length?")


def test_attention_entropy_refuses():
    for attention, x in ((Attention(8, 2, causal=False), draw(5, 8)), (Attention(8, 2, causal=True), draw(1, 8))):
        with pytest.raises(ValueError, match="attention, x: expected a causal one and two positions or more"):
            attention_entropy(attention.double(), x)


def test_saturation_is_of_what_each_block_finds():
    stack, x = stack_of(), 3 * draw(2, 4, WIDTH)
    squares, entropies = saturation(stack, x)
    streams = stack.streams(x)
    for i, block in enumerate(stack.blocks):
        stream = streams[2 * i].detach()
        close(squares[i], stream.square().mean(), bound(squares[i]), "mean square", "Behind the block?")
        read = attention_entropy(block.attention.branch, block.attention.before(stream))
        close(entropies[i], read, bound(read), "entropy", "Of the stream for its norm?")


def test_logits_of_a_head_of_zeros_and_of_one_of_ones():
    stack, x = stack_of(), draw(2, 4, WIDTH)
    still = logit_statistics(stack, torch.zeros(5, WIDTH).double(), x)
    close(still, torch.tensor([0.0, 1.0]).double(), 1e-14, "without logits", "Entropy in nats, not over log V?")
    head = draw(5, WIDTH)
    logits = (stack(x) @ head.T).detach()
    p = logits.softmax(-1)
    spread = (logits - logits.mean()).square().sum().div(logits.numel() - 1).sqrt()
    expected = torch.stack([spread, -(p * p.log()).sum(-1).mean() / math.log(5)])
    close(logit_statistics(stack, head, x), expected, bound(expected), "statistics", "The final norm left out?")
    with pytest.raises(ValueError, match=r"head: expected shape \(two or more, 16\), got \(5, 8\)"):
        logit_statistics(stack, draw(5, 8), x)


def test_means_over_stacks():
    def make(seed):
        return even_stack(seed, WIDTH, 3, "pre")

    for measure in (mean_saturation, mean_logit_statistics):
        first, second, both = (measure(make, seeds) for seeds in ([1], [2], iter((1, 2))))
        parts = (first, second, both) if measure is mean_saturation else ([first], [second], [both])
        for a, b, mean in zip(*parts, strict=True):
            torch.testing.assert_close(mean, (a + b) / 2, rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="seeds: expected at least one, got none"):
            measure(make, [])
    seeded_stack(7, WIDTH, 3, "pre")
    head = torch.randn(512, WIDTH) / 4
    expected = logit_statistics(seeded_stack(7, WIDTH, 3, "pre"), head, torch.zeros(4, 32, WIDTH))
    assert expected[1] == pytest.approx(1.0, abs=1e-5), "no stream, even predictions"
    wide = mean_logit_statistics(lambda k: seeded_stack(k, WIDTH, 3, "pre"), [7])
    assert float(wide[0]) == pytest.approx(1.0, rel=0.1), "a head of 1/√d gives a normed stream logits of variance 1"


def test_the_factor_of_a_geometric_series():
    squares = torch.cat([torch.tensor([9.0, 1.0, 7.0]), 5 * 3.0 ** torch.arange(4.0)]).double()
    assert factor_a_block(squares) == pytest.approx(3.0, rel=1e-12), "The first half too? One step too many?"
    with pytest.raises(ValueError, match="squares: expected three blocks or more, got 2"):
        factor_a_block(torch.ones(2))
