"""Residual blocks by placement against formulas unrolled by hand and against torch's encoder layers."""

import math
import re

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, draw, rounding, true_layer_norm, true_rms_norm
from normgeom_lab.common.stacks import PLACEMENTS, Block, LanguageModel, Stack, deepnorm_factors
from torch import nn

D, HEADS, HIDDEN, LENGTH, EPS = 8, 2, 12, 5, 1e-2
TRUE_NORMS = {"layer": true_layer_norm, "rms": true_rms_norm, "none": lambda x, weight, bias, eps: x}
# one sublayer with its branch f and its norms: the input's b, the output's a, the sum's s
FORMULAS = {
    "pre": lambda x, f, b, a, s, alpha: alpha * x + f(b(x)),
    "post": lambda x, f, b, a, s, alpha: s(alpha * x + f(x)),
    "sandwich": lambda x, f, b, a, s, alpha: alpha * x + a(f(b(x))),
    "branch-out": lambda x, f, b, a, s, alpha: alpha * x + a(f(x)),
    "deepnorm": lambda x, f, b, a, s, alpha: s(alpha * x + f(x)),
}
NORMS_A_BLOCK = {"pre": 2, "post": 2, "sandwich": 4, "branch-out": 2, "deepnorm": 2}
ENDS_WITH_A_NORM = {"pre", "sandwich", "branch-out"}
EACH = pytest.mark.parametrize("placement", FORMULAS)
SUSPECTS = "A norm on the wrong side of the addition? α on the branch? Norms swapped between sublayers?"


def shaken(module, seed=100):
    """In float64, every parameter of the module drawn anew: gains are not 1, and biases not 0."""
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(draw(*p.shape, seed=seed + i, scale=0.4, mean=0.5 if p.dim() == 1 else 0.0))
    return module


def unrolled_attention(x, weights, causal):
    """Softmax attention head by head and position by position."""
    size, output = D // HEADS, torch.zeros_like(x)
    q, k, v = (
        torch.einsum("btd,ed->bte", x, weights["in_proj.weight"][i * D : (i + 1) * D])
        + weights["in_proj.bias"][i * D : (i + 1) * D]
        for i in range(3)
    )
    for head in range(HEADS):
        own = slice(head * size, (head + 1) * size)
        for t in range(x.shape[1]):
            seen = t + 1 if causal else x.shape[1]
            scores = torch.einsum("be,bse->bs", q[:, t, own], k[:, :seen, own]) / math.sqrt(size)
            shares = scores.exp() / scores.exp().sum(-1, keepdim=True)
            output[:, t, own] = torch.einsum("bs,bse->be", shares, v[:, :seen, own])
    return output @ weights["out_proj.weight"].T + weights["out_proj.bias"]


def unrolled_mlp(x, weights, activation):
    act = {"relu": lambda t: t.clamp(min=0), "gelu": lambda t: t * (1 + torch.erf(t / math.sqrt(2))) / 2}[activation]
    return act(x @ weights["0.weight"].T + weights["0.bias"]) @ weights["2.weight"].T + weights["2.bias"]


def unrolled_block(x, weights, placement, norm="layer", alpha=1.0, causal=True, activation="gelu"):
    """The streams after attention and after the MLP."""

    def part(prefix):
        return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}

    streams = []
    for name, branch, option in (("attention", unrolled_attention, causal), ("mlp", unrolled_mlp, activation)):
        places = []
        for place in ("before", "after", "sum"):
            w = part(f"{name}.{place}.")
            places.append(lambda t, w=w: TRUE_NORMS[norm](t, w.get("weight"), w.get("bias"), EPS))
        inner = part(f"{name}.branch.")
        x = FORMULAS[placement](x, lambda t, f=branch, w=inner, o=option: f(t, w, o), *places, alpha)
        streams.append(x)
    return streams


def test_the_placements():
    assert set(PLACEMENTS) == set(FORMULAS)


@EACH
@pytest.mark.parametrize("norm", TRUE_NORMS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_block_is_its_formula(placement, norm, causal, activation):
    block = shaken(Block(D, HEADS, placement, norm, HIDDEN, EPS, 1.7, causal, activation))
    x = draw(3, LENGTH, D, mean=0.3)
    expected = unrolled_block(x, block.state_dict(), placement, norm, 1.7, causal, activation)[-1]
    close(block(x), expected, 1e-12, f"{placement}, {norm}", f"{SUSPECTS} Scores over √d, not √(d/heads)?")


@EACH
@pytest.mark.parametrize("final", [None, True, False])
def test_a_stack_is_its_formula(placement, final):
    layers = 3
    stack = shaken(Stack(D, HEADS, layers, placement, "layer", final, HIDDEN, EPS, "relu"))
    x, weights = draw(2, LENGTH, D), stack.state_dict()
    alpha = (2 * layers) ** 0.25 if placement == "deepnorm" else 1.0
    expected = [x]
    for i in range(layers):
        mine = {k.removeprefix(f"blocks.{i}."): v for k, v in weights.items() if k.startswith(f"blocks.{i}.")}
        expected += unrolled_block(expected[-1], mine, placement, alpha=alpha, activation="relu")
    streams = stack.streams(x)
    assert len(streams) == 2 * layers + 1, "one a sublayer, and the input"
    for i, (got, true) in enumerate(zip(streams, expected, strict=True)):
        close(got, true, 1e-11, f"stream {i}", f"{SUSPECTS} α of another depth, or of one sublayer only?")
    last = expected[-1]
    if placement in ENDS_WITH_A_NORM if final is None else final:
        last = true_layer_norm(last, weights["final.weight"], weights["final.bias"], EPS)
    close(stack(x), last, 1e-11, "output", "The final norm missing, or twice where the sum was normalised already?")


def test_sublayers_stand_in_the_order_of_the_stream():
    stack = Stack(D, HEADS, 2)
    first, second = stack.blocks
    assert stack.sublayers == [first.attention, first.mlp, second.attention, second.mlp]


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_shares_are_of_whole_ones_and_make_the_output(causal):
    branch, x = shaken(Block(D, HEADS, causal=causal)).attention.branch, draw(3, LENGTH, D)
    shares = branch.shares(x)
    assert shares.shape == (3, HEADS, LENGTH, LENGTH)
    tol = 4 * rounding(shares, torch.float64)
    close(shares.sum(-1), torch.ones(3, HEADS, LENGTH).double(), tol, "rows", "Scores for shares? Over the other axis?")
    assert bool((shares.triu(1) == 0).all()) == causal, "shares of what comes later"
    weight, bias = branch.in_proj.weight[2 * D :], branch.in_proj.bias[2 * D :]
    values = (x @ weight.T + bias).unflatten(-1, (HEADS, -1))
    mixed = torch.einsum("bhts,bshe->bthe", shares, values).flatten(-2)
    close(branch(x), branch.out_proj(mixed).detach(), 1e-12, "output", "Heads mixed up? Not the shares that act?")


@EACH
def test_norms_do_what_their_placement_says(placement):
    """Without gains: what has mean square 1 is the stream itself, or what a branch adds, or neither."""
    block = Block(64, 4, placement, eps=0.0, alpha=1.0).double()
    x = 3 * draw(2, LENGTH, 64)
    stream = block.attention(x)
    squares = {"stream": stream.square().mean(-1), "branch": (stream - x).square().mean(-1)}
    normalised = {what for what, s in squares.items() if (s - 1).abs().max() < 1e-12}
    expected = {"pre": set(), "post": {"stream"}, "deepnorm": {"stream"}}.get(placement, {"branch"})
    assert normalised == expected, f"{placement}: of mean square 1 {normalised or 'nothing'}, expected {expected}"


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_torchs_encoder_layer(placement, activation, causal):
    first = placement == "pre"
    theirs = nn.TransformerEncoderLayer(D, HEADS, HIDDEN, 0.0, activation, EPS, batch_first=True, norm_first=first)
    theirs = shaken(theirs)
    block = Block(D, HEADS, placement, "layer", HIDDEN, EPS, 1.0, causal, activation).double()
    place, weights = ("before" if first else "sum"), theirs.state_dict()
    names = {
        "self_attn.in_proj_": "attention.branch.in_proj.",
        "self_attn.out_proj.": "attention.branch.out_proj.",
        "linear1.": "mlp.branch.0.",
        "linear2.": "mlp.branch.2.",
        "norm1.": f"attention.{place}.",
        "norm2.": f"mlp.{place}.",
    }
    block.load_state_dict({m + kind: weights[t + kind] for t, m in names.items() for kind in ("weight", "bias")})
    x = draw(3, LENGTH, D).requires_grad_()
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64) if causal else None
    expected, got = theirs(x, src_mask=mask, is_causal=causal), block(x)
    close(got, expected, 1e-12, f"{placement}-norm", SUSPECTS)
    direction = draw(3, LENGTH, D, seed=1)
    by_x = [torch.autograd.grad((y * direction).sum(), x)[0] for y in (got, expected)]
    close(*by_x, 1e-12, "gradient", "Something detached?")


@EACH
def test_causality(placement):
    """A later token does not reach an earlier output; without the mask it does.

    It moves in a random direction: along 1, where LayerNorms stand before all that is read, no output would.
    """
    x = draw(2, LENGTH, D)
    other = x.clone()
    other[:, 3] += draw(2, D, seed=1)
    for causal in (True, False):
        stack = shaken(Stack(D, HEADS, 2, placement, hidden=HIDDEN, causal=causal))
        moved = (stack(x) - stack(other)).abs().amax((0, 2))
        assert bool((moved[:3] == 0).all()) == causal, f"causal={causal}: earlier outputs moved by {moved[:3].tolist()}"
        assert moved[3:].min() > 1e-6, "the token itself and later ones must move"


def test_examples_do_not_mix_and_a_batch_may_have_any_leading_shape():
    stack, x = shaken(Stack(D, HEADS, 2, hidden=HIDDEN)), draw(2, 3, LENGTH, D)
    expected = torch.stack([torch.stack([stack(x[i, j]) for j in range(3)]) for i in range(2)])
    close(stack(x), expected, 1e-12, "a batch", "An axis counted from the front?")
    assert stack(x[:0]).shape == x[:0].shape


@EACH
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_the_derivative(placement, norm):
    """Reverse mode, forward mode, vmap over both, and second derivatives, against finite differences."""
    stack = shaken(Stack(4, 2, 1, placement, norm, hidden=5, eps=EPS))
    x = draw(1, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(stack, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(stack, x)


@EACH
def test_torch_func_goes_through(placement):
    stack = shaken(Stack(D, HEADS, 2, placement, hidden=HIDDEN, eps=EPS))
    x, v = draw(1, 3, D), draw(1, 3, D, seed=1)
    dense = torch.autograd.functional.jacobian(stack, x).reshape(3 * D, 3 * D)
    value, product = torch.func.jvp(stack, (x,), (v,))
    close(value, stack(x), 1e-12, "value under jvp", "Another formula under torch.func?")
    close(product.flatten(), dense @ v.flatten(), 1e-11, "Jv", "A detached statistic in one of the modes?")
    close(torch.func.jacrev(stack)(x).reshape(dense.shape), dense, 1e-11, "J by jacrev", "A detached statistic?")


# ---- what a new model looks like ----


def test_deepnorms_factors():
    alpha, beta = deepnorm_factors(18)
    assert alpha == pytest.approx(36**0.25, abs=1e-15) and alpha == pytest.approx(2.449489742783178), "α = (2M)^¼"
    assert beta == pytest.approx(144**-0.25, abs=1e-15) and beta == pytest.approx(1 / math.sqrt(12)), "β = (8M)^−¼"


@EACH
def test_matrices_start_xavier_normal(placement):
    """With DeepNorm's gain on both matrices of the MLP, the values and the attention's output, and on no others."""
    layers, d, hidden = 4, 96, 160
    beta = (8 * layers) ** -0.25 if placement == "deepnorm" else 1.0
    for block in Stack(d, 4, layers, placement, hidden=hidden).blocks:
        w = block.state_dict()
        q, k, v = w["attention.branch.in_proj.weight"].split(d)
        matrices = {"Q": (q, 1.0), "K": (k, 1.0), "V": (v, beta), "O": (w["attention.branch.out_proj.weight"], beta)}
        matrices |= {f"MLP {i}": (w[f"mlp.branch.{i}.weight"], beta) for i in (0, 2)}
        for name, (matrix, gain) in matrices.items():
            ratio = float(matrix.std()) / math.sqrt(2 / sum(matrix.shape)) / gain
            # margin: the spread of some thousand drawn weights, the same on every machine
            assert abs(ratio - 1) < 0.05, f"{name}: {ratio:.3f} of Xavier. QKV as one matrix? β missing, or on Q and K?"
            kurtosis = float((matrix / matrix.std()).pow(4).mean())
            assert abs(kurtosis - 3) < 0.3, f"{name}: fourth moment {kurtosis:.2f}, 3 expected. Uniform?"
        for name, vector in w.items():
            if vector.dim() == 1:
                norm_gain = name.endswith("weight")
                assert torch.equal(vector, torch.full_like(vector, float(norm_gain))), f"{name}: γ = 1 and biases 0"


def test_the_seed_decides_and_placements_start_alike():
    """So that two placements, or two norms, differ in nothing else; DeepNorm's matrices are β times the others."""

    def matrices(seed=0, **choice):
        torch.manual_seed(seed)
        return {k: v for k, v in Stack(D, HEADS, 2, **choice).state_dict().items() if v.dim() == 2}

    reference, beta = matrices(), deepnorm_factors(2)[1]
    for choice in ({"placement": "post"}, {"placement": "sandwich"}, {"norm": "rms"}, {"norm": "none"}):
        for name, value in matrices(**choice).items():
            assert torch.equal(value, reference[name]), f"{choice}: {name} differs from pre-norm's"
    for name, value in matrices(placement="deepnorm").items():
        scale = torch.full_like(value, beta)
        if "in_proj" in name:
            scale[: 2 * D] = 1.0
        close(value, scale * reference[name], 1e-7, name, "β where it does not belong?")
    other = matrices(seed=1)
    assert all(not torch.equal(value, other[name]) for name, value in reference.items())


@EACH
@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
def test_every_norm_is_found(placement, norm):
    layers = 2
    stack = Stack(32, 4, layers, placement, norm, eps=1e-4).float()
    sites = ng.find_norms(stack, draw(2, 11, 32, dtype=torch.float32))
    expected = layers * NORMS_A_BLOCK[placement] + (placement in ENDS_WITH_A_NORM)
    assert len(sites) == (0 if norm == "none" else expected), [s.name for s in sites]
    assert {(s.kind, s.eps, s.dim, s.token_axis) for s in sites} <= {(norm, 1e-4, 32, 1)}, "kind, ε, d or axis"
    counted = sum(isinstance(module, ng.LayerNorm | ng.RMSNorm) for module in stack.modules())
    assert counted == len(sites), "norms that never run"


def test_defaults():
    for module in (Block(D, HEADS), Stack(D, HEADS, 1)):
        block = module.blocks[0] if isinstance(module, Stack) else module
        assert block.mlp.branch[0].out_features == 4 * D
        assert isinstance(block.mlp.branch[1], nn.GELU)
        assert block.attention.branch.causal
        assert isinstance(block.mlp.before, ng.LayerNorm), "pre-norm by default"
        assert {m.eps for m in module.modules() if isinstance(m, ng.LayerNorm)} == {1e-5}


@EACH
def test_weights_survive_saving(placement, tmp_path):
    stack, x = shaken(Stack(D, HEADS, 2, placement)), draw(2, LENGTH, D)
    torch.save(stack.state_dict(), tmp_path / "stack.pt")
    again = Stack(D, HEADS, 2, placement).double()
    again.load_state_dict(torch.load(tmp_path / "stack.pt"))
    assert torch.equal(again(x), stack(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    stack = shaken(Stack(D, HEADS, 2, "sandwich"))
    x = draw(2, LENGTH, D)
    expected = stack(x)
    got = stack.to(dtype)(x.to(dtype))
    assert got.dtype == dtype
    close(
        got, expected, 30 * torch.finfo(dtype).eps * float(expected.detach().abs().max()), f"in {dtype}", "Lost digits?"
    )


# ---- the language model ----


def test_the_language_model_is_its_formula():
    model = shaken(LanguageModel(7, 6, Stack(D, HEADS, 2, hidden=HIDDEN)))
    ids = torch.tensor([[3, 0, 6, 6, 1], [2, 2, 5, 4, 0]])
    w = model.state_dict()
    x = F.one_hot(ids, 7).double() @ w["tokens.weight"] + w["positions.weight"][:5]
    expected = model.stack(x) @ w["head.weight"].T
    close(model(ids), expected, 1e-12, "logits", "Positions along the batch? A bias, or a tied head?")
    close(model(ids[:, :2]), expected[:, :2], 1e-12, "logits of a prefix", "Positions counted from the end?")


def test_the_language_model_at_its_start():
    model = LanguageModel(300, 200, Stack(D, HEADS, 1), scale=0.3)
    assert {n for n, _ in model.named_parameters() if not n.startswith("stack")} == {
        "tokens.weight",
        "positions.weight",
        "head.weight",
    }, "a bias?"
    assert model.head.weight is not model.tokens.weight, "tied"
    for module in (model.tokens, model.positions, model.head):
        assert float(module.weight.detach().std()) == pytest.approx(0.3, rel=0.1)
    assert float(LanguageModel(300, 200, Stack(D, HEADS, 1)).head.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


@EACH
def test_the_language_model_learns(placement):
    """A cycle of tokens, within a few steps."""
    model = LanguageModel(8, 9, Stack(16, 2, 1, placement))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ids = (torch.arange(9) + torch.arange(8)[:, None]) % 8
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters()), "a parameter that nothing depends on"
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(8), abs=0.3)
    assert losses[-1] < 0.3 * losses[0], f"from {losses[0]:.2f} to {losses[-1]:.2f}"


def test_the_language_models_norms_are_found():
    model = LanguageModel(8, 16, Stack(16, 2, 2, "sandwich"))
    sites = ng.find_norms(model, torch.arange(32).reshape(2, 16) % 8)
    order = [
        f"stack.blocks.{i}.{part}.{place}"
        for i in (0, 1)
        for part in ("attention", "mlp")
        for place in ("before", "after")
    ]
    assert [site.name for site in sites] == [*order, "stack.final"]


# ---- bad input ----


BAD = {
    "d is 0": (dict(d=0), ValueError, "d: expected"),
    "d is a float": (dict(d=8.0), TypeError, "d: expected an integer, got float"),
    "d is nothing": (dict(d=None), TypeError, "d: expected an integer, got NoneType"),
    "no heads": (dict(heads=0), ValueError, "heads: expected"),
    "a truth for heads": (dict(heads=True), TypeError, "heads: expected an integer, got bool"),
    "heads that do not divide d": (dict(heads=3), ValueError, "heads: expected a divisor of d = 8, got 3"),
    "negative width": (dict(hidden=-1), ValueError, "hidden: expected"),
    "fractional width": (dict(hidden=1.5), TypeError, "hidden: expected an integer"),
    "unknown placement": (dict(placement="peri"), ValueError, "placement: expected one of 'pre', 'post', 'sandwich'"),
    "placement is no name": (dict(placement=["pre"]), ValueError, "placement: expected one of"),
    "unknown norm": (
        dict(norm="batch"),
        ValueError,
        "norm: expected one of 'layer', 'rms', 'none', 'dyt', 'derf', got 'batch'",
    ),
    "unknown activation": (dict(activation="swish"), ValueError, "activation: expected one of 'gelu', 'relu'"),
    "negative ε": (dict(eps=-1e-5), ValueError, "eps: expected"),
    "negative ε of no norm": (dict(eps=-1e-5, norm="none"), ValueError, "eps: expected"),
    "ε is a text": (dict(eps="1e-5"), TypeError, "eps: expected a number, got str"),
}
BAD_BLOCK = {
    "α of DeepNorm unknown": (dict(placement="deepnorm"), ValueError, "alpha: expected a number, for"),
    "a start that needs the depth": (dict(placement="post-small"), ValueError, "placement: expected one of 'pre'"),
    "α is NaN": (dict(alpha=math.nan), ValueError, "alpha: expected a finite number"),
    "β is nothing": (dict(beta=None), TypeError, "beta: expected a number"),
}
BAD_STACK = {
    "no layers": (dict(layers=0), ValueError, "layers: expected"),
    "layers is a float": (dict(layers=2.0), TypeError, "layers: expected an integer, got float"),
    "final norm is a name": (dict(final_norm="layer"), TypeError, "final_norm: expected True, False or None, got str"),
}


def refused(make, error, words):
    """The error, and that nothing was drawn before it came."""
    state = torch.get_rng_state()
    with pytest.raises(error, match="^" + re.escape(words)):
        make()
    assert torch.equal(torch.get_rng_state(), state), "weights were drawn before the check"


@pytest.mark.parametrize("case", BAD | BAD_BLOCK)
def test_bad_blocks(case):
    wrong, error, words = (BAD | BAD_BLOCK)[case]
    refused(lambda: Block(**{"d": 8, "heads": 2, **wrong}), error, words)


@pytest.mark.parametrize("case", BAD | BAD_STACK)
def test_bad_stacks(case):
    wrong, error, words = (BAD | BAD_STACK)[case]
    refused(lambda: Stack(**{"d": 8, "heads": 2, "layers": 2, **wrong}), error, words)


@pytest.mark.parametrize("layers, error", [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_bad_depths(layers, error):
    refused(lambda: deepnorm_factors(layers), error, "layers: expected")


def test_bad_streams():
    for module in (Block(D, HEADS, "post"), Stack(D, HEADS, 2, norm="none"), Stack(D, HEADS, 2).streams):
        for x, error in ((torch.zeros(2, 3, D + 1), ValueError), (torch.zeros(D), ValueError)):
            with pytest.raises(error, match=rf"^x: expected shape \(\.\.\., length, {D}\), got"):
                module(x)
        with pytest.raises(TypeError, match=r"^x: expected a floating-point dtype, got torch.int64"):
            module(torch.zeros(2, 3, D, dtype=torch.long))


def test_bad_language_models():
    stack, block = Stack(D, HEADS, 1), Block(D, HEADS)
    refused(lambda: LanguageModel(0, 4, stack), ValueError, "vocabulary: expected")
    refused(lambda: LanguageModel(4, 2.0, stack), TypeError, "length: expected an integer")
    refused(lambda: LanguageModel(4, 4, block), TypeError, "stack: expected a Stack")
    refused(lambda: LanguageModel(4, 4, stack, scale=-1.0), ValueError, "scale: expected")


def test_bad_ids():
    model = LanguageModel(4, 6, Stack(D, HEADS, 1))
    for ids in (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool), [[0, 1]]):
        with pytest.raises(TypeError, match=r"^ids: expected a tensor of integers, got"):
            model(ids)
    for shape in ((3,), (2, 7), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"^ids: expected shape \(batch, length\) with length at most 6, got"):
            model(torch.zeros(shape, dtype=torch.long))
    with pytest.raises(IndexError):
        model(torch.tensor([[4]]))
