"""Stacks by design against formulas of their sources, written out here, torch's encoder layers, and known starts."""

import math

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, draw, true_layer_norm, true_rms_norm
from normgeom_lab.common.stacks import DESIGNS, PLACEMENTS, LanguageModel, Stack, normalise_weights
from torch import nn

D, HEADS, LENGTH, EPS = 12, 3, 5, 1e-3
EACH = pytest.mark.parametrize("name", DESIGNS)
FIVE = pytest.mark.parametrize("name", PLACEMENTS)


def shaken(module, seed=7):
    """In float64, with every parameter drawn: gains are not 1, step sizes have both signs."""
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(draw(*p.shape, seed=seed + i, scale=0.5, mean=0.6 if p.dim() == 1 else 0.0))
    return module


def norm(module, centered=True):
    """The norm of a module by its formula; nothing for what is no norm."""
    if isinstance(module, nn.Identity):
        return lambda x: x
    true = true_layer_norm if centered else true_rms_norm
    return lambda x: true(x, getattr(module, "weight", None), getattr(module, "bias", None), EPS)


def attention(branch, x, q_norm=None, k_norm=None, v_norm=None, scale=None):
    """Causal attention, head by head, with norms of one head's queries, keys and values."""
    size, out = D // HEADS, []
    rows = x @ branch.in_proj.weight.T + branch.in_proj.bias
    same = lambda t, head: t  # noqa: E731
    for head in range(HEADS):
        cut = [rows[..., i * D + head * size : i * D + (head + 1) * size] for i in range(3)]
        q, k, v = ((f or same)(t, head) for f, t in zip((q_norm, k_norm, v_norm), cut, strict=True))
        scores = q @ k.mT * (1 / math.sqrt(size) if scale is None else scale)
        scores = scores + torch.full(scores.shape[-2:], -math.inf, dtype=x.dtype).triu(1)
        out.append(scores.softmax(-1) @ v)
    return torch.cat(out, -1) @ branch.out_proj.weight.T + branch.out_proj.bias


def mlp(branch, x):
    inner = x @ branch[0].weight.T + branch[0].bias
    act = inner.clamp(min=0) if isinstance(branch[1], nn.ReLU) else inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
    return act @ branch[2].weight.T + branch[2].bias


def of_head(module):
    weight, bias = (getattr(module.norm, name, None) for name in ("weight", "bias"))
    return lambda t, head: true_layer_norm(t, weight, bias, EPS)


def branches(block, **norms):
    """Each sublayer of a block with its branch f: attention, then the MLP."""
    yield block.attention, lambda t: attention(block.attention.branch, t, **norms)
    yield block.mlp, lambda t: mlp(block.mlp.branch, t)


def pre(block, x, scale=1.0, centered=True, **norms):
    for part, f in branches(block, **norms):
        x = x + f(scale * norm(part.before, centered)(x))
    return x


def summed(block, x, alpha=1.0, before=False):
    """N(αx + f(x)), or N(αx + f(N(x)))."""
    for part, f in branches(block):
        x = norm(part.sum)(alpha * x + f(norm(part.before)(x) if before else x))
    return x


def behind(block, x, before):
    """x + N(f(x)), or x + N(f(N(x)))."""
    for part, f in branches(block):
        x = x + norm(part.after)(f(norm(part.before)(x) if before else x))
    return x


def hybrid(block, x, letters="qkv"):
    """Zhuo et al. (2025), equations 5 and 6: Y = MHA(X) + X, X⁺ = FFN(Norm(Y)) + Norm(Y)."""
    norms = {f"{letter}_norm": of_head(block.attention.branch.norms[letter]) for letter in letters}
    n, y = norm(block.attention.sum), attention(block.attention.branch, x, **norms) + x
    return mlp(block.mlp.branch, n(y)) + n(y)


def keel(block, x, alpha, first):
    """Chen and Wei (2026), equation 8: LN(αx + F(LN(x))), α the number of sublayers; none of it at the first one."""
    (a, attend), (m, f) = branches(block)
    x = x + attend(norm(a.before)(x)) if first else norm(a.sum)(alpha * x + attend(norm(a.before)(x)))
    return norm(m.sum)((1 if first else alpha) * x + f(norm(m.before)(x)))


def qk(block, x, keys="k"):
    norms = block.attention.branch.norms
    return pre(block, x, q_norm=of_head(norms["q"]), k_norm=of_head(norms[keys]))


def ngpt(block, x, step=lambda h, target, a: h + a * (target - h)):
    """Loshchilov et al. (2025), equations 10, 11, 15 and 16: vectors of length 1, softmax factor √d_k."""
    unit = lambda v: v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)  # noqa: E731
    size, h, branch = D // HEADS, unit(x), block.attention.branch
    s_qk = branch.norms["q"].weight * math.sqrt(D)
    by = lambda t, head: unit(t) * s_qk[head * size : (head + 1) * size]  # noqa: E731
    steps = [(0.05 * math.sqrt(D) * part.steps).abs() for part in (block.attention, block.mlp)]
    # the matrices read √d h: the factor that the authors give to u and ν
    h = unit(step(h, unit(attention(branch, math.sqrt(D) * h, by, by, scale=math.sqrt(size))), steps[0]))
    h = unit(step(h, unit(mlp(block.mlp.branch, math.sqrt(D) * h)), steps[1]))
    return math.sqrt(D) * h


def same(formula, **options):
    """A formula of all blocks alike."""
    return lambda block, x, number, blocks: formula(block, x, **options)


# Block, stream, number of the block from 1, how many there are → stream; and the same with one thing wrong.
TRUTHS = {
    "pre": (same(pre), same(pre, scale=0.5)),
    "pre-rms": (same(pre, centered=False), same(pre)),
    "post": (same(summed), same(pre)),
    "deepnorm": (
        lambda block, x, number, blocks: summed(block, x, (2 * blocks) ** 0.25),
        lambda block, x, number, blocks: summed(block, x, (8 * blocks) ** 0.25),
    ),
    "sandwich": (same(behind, before=True), same(behind, before=False)),
    "branch-out": (same(behind, before=False), same(summed)),
    "mix": (
        lambda block, x, number, blocks: (summed if number <= blocks // 4 else pre)(block, x),
        lambda block, x, number, blocks: (summed if number > blocks - blocks // 4 else pre)(block, x),
    ),
    "hybrid": (same(hybrid), same(hybrid, letters="qk")),
    "scaled": (  # Sun et al. (2025), equation 12: the norm's output, gain and bias included, over √ℓ of blocks
        lambda block, x, number, blocks: pre(block, x, 1 / math.sqrt(number)),
        lambda block, x, number, blocks: pre(block, x, 1 / number),
    ),
    "keel": (
        lambda block, x, number, blocks: keel(block, x, 2 * blocks, number == 1),
        lambda block, x, number, blocks: keel(block, x, 2 * blocks, False),
    ),
    "qk": (same(qk), same(qk, keys="q")),
    "sphere": (same(ngpt), same(ngpt, step=lambda h, target, a: h + a * target)),
    "none": (same(pre), same(pre, scale=0.5)),
    "post-small": (same(summed), same(summed, alpha=1.1)),
    "hybrid-small": (same(hybrid), same(hybrid, letters="qk")),
    "post-alpha": (
        lambda block, x, number, blocks: summed(block, x, 2 * blocks),
        lambda block, x, number, blocks: summed(block, x, blocks),
    ),
    "pre-post": (same(summed, before=True), same(summed)),
}


def by(formula, stack, x):
    for number, block in enumerate(stack.blocks, 1):
        x = formula(block, x, number, len(stack.blocks))
    return x


def test_every_design_has_its_formula_and_words_of_its_own():
    assert {*TRUTHS, "dyt", "derf"} == set(DESIGNS)
    assert len({design.words for design in DESIGNS.values()}) == len(DESIGNS)


@pytest.mark.parametrize("name", TRUTHS)
@torch.no_grad()
def test_a_design_is_its_sources_formula(name):
    stack = shaken(Stack(D, HEADS, 5, name, eps=EPS * (name != "sphere"), final_norm=False))
    x = draw(2, 6, D, mean=0.4)
    x = x if name != "sphere" else true_rms_norm(x, None, None, 0.0)
    got, true, wrong = stack(x), *(by(formula, stack, x) for formula in TRUTHS[name])
    scale = float(true.abs().max())
    assert float((got - true).abs().max()) <= 1e-12 * scale, f"{name}: not what its source computes"
    assert float((got - wrong).abs().max()) > 1e-4 * scale, f"{name}: the near miss passes too"


@pytest.mark.parametrize("final", [None, True, False])
@FIVE
def test_streams_and_the_final_norm(name, final):
    stack, x = shaken(Stack(D, HEADS, 3, name, "layer", final, 16, EPS, "relu")), draw(2, LENGTH, D)
    streams = stack.streams(x)
    assert len(streams) == 7 and streams[0] is x, "one a sublayer, and the input"
    end = by(TRUTHS[name][0], stack, x)
    close(streams[-1], end, 1e-11, "last stream", "The final norm applied? GELU for ReLU?")
    if final if final is not None else not PLACEMENTS[name].sum:
        end = norm(stack.final)(end)
    close(stack(x), end, 1e-11, "output", "The final norm missing, or twice where the sum was normalised already?")
    first, second, _ = stack.blocks
    assert stack.sublayers[:4] == [first.attention, first.mlp, second.attention, second.mlp]


@pytest.mark.parametrize("name", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_torchs_encoder_layer(name, activation):
    first = name == "pre"
    theirs = shaken(nn.TransformerEncoderLayer(D, HEADS, 16, 0.0, activation, EPS, batch_first=True, norm_first=first))
    stack = Stack(D, HEADS, 1, name, "layer", False, 16, EPS, activation).double()
    place, weights = ("before" if first else "sum"), theirs.state_dict()
    names = {
        "self_attn.in_proj_": "attention.branch.in_proj.",
        "self_attn.out_proj.": "attention.branch.out_proj.",
        "linear1.": "mlp.branch.0.",
        "linear2.": "mlp.branch.2.",
        "norm1.": f"attention.{place}.",
        "norm2.": f"mlp.{place}.",
    }
    block = {mine + kind: weights[its + kind] for its, mine in names.items() for kind in ("weight", "bias")}
    stack.blocks[0].load_state_dict(block)
    x = draw(3, LENGTH, D).requires_grad_()
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
    expected, got = theirs(x, src_mask=mask, is_causal=True), stack(x)
    close(got, expected, 1e-12, f"{name}-norm", "A norm on the wrong side of the addition?")
    direction = draw(3, LENGTH, D, seed=1)
    by_x = [torch.autograd.grad((y * direction).sum(), x)[0] for y in (got, expected)]
    close(*by_x, 1e-12, "gradient", "Something detached?")


@FIVE
def test_a_later_token_does_not_reach_an_earlier_output(name):
    """It moves in a random direction: along 1, where LayerNorms stand before all that is read, no output would."""
    x = draw(2, LENGTH, D)
    other = x.clone()
    other[:, 3] += draw(2, D, seed=1)
    stack = shaken(Stack(D, HEADS, 2, name))
    moved = (stack(x) - stack(other)).abs().amax((0, 2))
    assert (moved[:3] == 0).all() and moved[3:].min() > 1e-6, moved


def test_a_batch_may_have_any_leading_shape():
    stack, x = shaken(Stack(D, HEADS, 2)), draw(2, 3, LENGTH, D)
    expected = torch.stack([torch.stack([stack(x[i, j]) for j in range(3)]) for i in range(2)])
    close(stack(x), expected, 1e-12, "a batch", "An axis counted from the front?")


@FIVE
def test_the_derivative(name):
    """Reverse mode, forward mode, vmap over both, and second derivatives, against finite differences."""
    stack, x = shaken(Stack(4, 2, 1, name, hidden=5, eps=1e-2)), draw(1, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(stack, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(stack, x)


@pytest.mark.parametrize("name", ["dyt", "derf"])
@torch.no_grad()
def test_functions_in_a_norms_place(name):
    """Against Python's own tanh and erf, entry by entry, in a stack that is otherwise pre-norm."""
    stack = shaken(Stack(D, HEADS, 1, name, final_norm=False))
    functions = [math.tanh, math.erf]
    right, wrong = functions if name == "dyt" else functions[::-1]

    def truth(x, of):
        for part, f in branches(stack.blocks[0]):
            n = part.before
            shift = getattr(n, "shift", torch.zeros(1)).item()
            entries = [of(n.alpha.item() * v + shift) for v in x.flatten().tolist()]
            x = x + f(torch.tensor(entries, dtype=x.dtype).view_as(x) * n.weight + n.bias)
        return x

    x = draw(2, 6, D, mean=0.4)
    got, true, near = stack(x), truth(x, right), truth(x, wrong)
    assert float((got - true).abs().max()) <= 1e-6 * float(true.abs().max()), "Python's function, to single precision"
    assert float((got - near).abs().max()) > 1e-3, "tanh and erf cannot be told apart here"
    assert ng.find_norms(LanguageModel(32, 8, Stack(D, HEADS, 2, name)), torch.arange(8).view(1, 8)) == []


def matrices(name="pre", layers=2, d=D, seed=0, **options):
    """Those of a new stack: of queries, keys and values each its own."""
    torch.manual_seed(seed)
    found = {}
    for key, value in Stack(d, 4, layers, name, **options).named_parameters():
        if "in_proj.weight" in key:
            found |= {key + letter: part for letter, part in zip("QKV", value.detach().split(d), strict=True)}
        elif value.dim() == 2:
            found[key] = value.detach()
    return found


def test_matrices_start_xavier_normal():
    for key, matrix in matrices(layers=4, d=96, hidden=160).items():
        ratio = float(matrix.std()) / math.sqrt(2 / sum(matrix.shape))
        # margin: the spread of some thousand drawn weights, the same on every machine
        assert abs(ratio - 1) < 0.05, f"{key}: {ratio:.3f} of Xavier. QKV as one matrix?"
        kurtosis = float((matrix / matrix.std()).pow(4).mean())
        assert abs(kurtosis - 3) < 0.3, f"{key}: fourth moment {kurtosis:.2f}, 3 expected. Uniform?"
    for key, vector in Stack(D, HEADS, 2, "sandwich").named_parameters():
        if vector.dim() == 1:
            norm_gain = float(key.endswith("weight"))
            assert torch.equal(vector, torch.full_like(vector, norm_gain)), f"{key}: γ = 1 and biases 0"


@EACH
def test_designs_start_alike_up_to_their_gains(name):
    """One seed, one start: but for DeepNorm's β, not on queries and keys, and W_O and W₂ over √L of small outputs."""
    layers = 3
    reference, other = matrices(layers=layers), matrices(layers=layers, seed=1)
    for key, value in matrices(name, layers).items():
        factor = 1.0
        if name == "deepnorm" and not key.endswith(("Q", "K")):
            factor = (8 * layers) ** -0.25
        if "small" in name and key.endswith(("out_proj.weight", "branch.2.weight")):
            factor = (2 * layers) ** -0.5
        torch.testing.assert_close(value, factor * reference[key], rtol=1e-6, atol=0, msg=key)
        assert not torch.allclose(value, factor * other[key]), "the seed does not matter"


@EACH
def test_which_norms_are_found(name):
    model = shaken(LanguageModel(32, 8, Stack(D, HEADS, 4, name)))
    dims = [site.dim for site in ng.find_norms(model, torch.arange(8).view(1, 8))]
    rules = [DESIGNS[name].rule(k, 8) for k in range(8)]
    letters = sum(1 if rule.step else len(rule.heads) for rule in rules[::2])
    stream = sum(rule.before + rule.after + rule.sum for rule in rules)
    ends = (not rules[-1].sum) + (name == "sphere")  # a final norm; the sphere's embedding
    counts = [letters, stream + ends] if name not in ("dyt", "derf", "none") else [0, 0]
    assert [dims.count(D // HEADS), dims.count(D)] == counts, "norms of the heads and of the stream"


def test_defaults():
    block = Stack(D, HEADS, 1).blocks[0]
    assert block.mlp.branch[0].out_features == 4 * D and isinstance(block.mlp.branch[1], nn.GELU)
    assert isinstance(block.mlp.before, ng.LayerNorm) and block.mlp.before.eps == 1e-5, "pre-norm by default"
    assert isinstance(Stack(D, HEADS, 1, "pre", "none").blocks[0].mlp.before, nn.Identity), "the norm that is asked for"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    stack, x = shaken(Stack(D, HEADS, 2, "sandwich")), draw(2, LENGTH, D)
    expected = stack(x).detach()
    got = stack.to(dtype)(x.to(dtype))
    assert got.dtype == dtype
    close(got, expected, 30 * torch.finfo(dtype).eps * float(expected.abs().max()), f"in {dtype}", "Lost digits?")


def test_the_language_model_is_its_formula():
    model = shaken(LanguageModel(7, 6, Stack(D, HEADS, 2)))
    ids, w = torch.tensor([[3, 0, 6, 6, 1], [2, 2, 5, 4, 0]]), model.state_dict()
    x = F.one_hot(ids, 7).double() @ w["tokens.weight"] + w["positions.weight"][:5]
    expected = model.stack(x) @ w["head.weight"].T
    close(model(ids), expected, 1e-12, "logits", "Positions along the batch? A bias, or a tied head?")
    close(model(ids[:, :2]), expected[:, :2], 1e-12, "logits of a prefix", "Positions counted from the end?")
    start = LanguageModel(300, 200, Stack(16, 2, 1))
    own = {name: p for name, p in start.named_parameters() if not name.startswith("stack")}
    assert set(own) == {"tokens.weight", "positions.weight", "head.weight"}, "a bias, or a tied head?"
    assert [float(p.detach().std()) for p in own.values()] == pytest.approx([0.25] * 3, rel=0.1), "1/√d"


@EACH
def test_the_language_model_learns(name):
    """A cycle of tokens, within a few steps."""
    torch.manual_seed(0)
    model = LanguageModel(8, 9, Stack(16, 2, 1, name))
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
    assert losses[-1] < 0.5 * losses[0], f"from {losses[0]:.2f} to {losses[-1]:.2f}"


@torch.no_grad()
def test_logits_on_the_sphere_are_cosines():
    """Equation 3 and the sixth step of the recipe: z = E h s_z, with vectors of length 1."""
    model = normalise_weights(shaken(LanguageModel(32, 8, Stack(D, HEADS, 2, "sphere", eps=0.0))))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    start = model.tokens(ids) + model.positions.weight[:5]
    start = math.sqrt(D) * start / start.norm(dim=-1, keepdim=True)
    h = by(same(ngpt), model.stack, start) / math.sqrt(D)
    cosines = h @ model.head.weight.T
    true = cosines * model.logit_scale * math.sqrt(D)
    assert float((model(ids) - true).abs().max()) <= 1e-12 * float(true.abs().max())
    assert float(cosines.abs().max()) <= 1


def test_weights_are_brought_to_the_sphere():
    model = normalise_weights(shaken(LanguageModel(32, 8, Stack(D, HEADS, 2, "sphere"))))
    block = model.stack.blocks[1]
    branch, (first, _, second) = block.attention.branch, block.mlp.branch
    rows = [model.tokens.weight, model.positions.weight, model.head.weight, branch.in_proj.weight, first.weight]
    for vectors in (*rows, branch.out_proj.weight.T, second.weight.T):
        assert vectors.shape[1] == D, "vectors of the wrong axis"
        assert torch.allclose(vectors.norm(dim=1), torch.ones(len(vectors)).double(), atol=1e-14)
