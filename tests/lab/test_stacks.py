"""Stacks by design against formulas written out here, torch's encoder layers, and known starts."""

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
    return lambda x: true(x, getattr(module, "weight", None), getattr(module, "bias", None), module.eps)


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


# --- designs: chapters 6 and 12 check those of papers; here are the parts of attention, and the controls -------------


@pytest.mark.parametrize(("name", "letters"), [("hybrid", "qkv"), ("qk", "qk")])
def test_norms_in_every_head(name, letters):
    branch = shaken(Stack(D, HEADS, 1, name, eps=EPS)).blocks[0].attention.branch

    def of_head(module):
        weight, bias = (getattr(module.norm, key, None) for key in ("weight", "bias"))
        return lambda t, head: true_layer_norm(t, weight, bias, EPS)

    x, norms = draw(2, 6, D, mean=0.4), {f"{letter}_norm": of_head(branch.norms[letter]) for letter in letters}
    close(branch(x), attention(branch, x, **norms), 1e-12, name, "Keys' norm on queries? Of all heads together?")


def test_attention_on_the_sphere():
    """Loshchilov et al. (2025), equations 15 and 16: queries and keys of length 1, times s_qk, softmax factor √d_k."""
    branch = shaken(Stack(D, HEADS, 1, "sphere", eps=0.0)).blocks[0].attention.branch
    size, s_qk = D // HEADS, branch.norms["q"].weight * math.sqrt(D)
    by = lambda t, head: F.normalize(t, dim=-1) * s_qk[head * size : (head + 1) * size]  # noqa: E731
    x = draw(2, 6, D)
    close(branch(x), attention(branch, x, by, by, scale=math.sqrt(size)), 1e-11, "attention", "1/√d_k? Gains by head?")


# of a stack of 3 blocks: norms before, after and on the sum, α
CONTROLS = {
    "pre-rms": (1, 0, 0, 1),
    "none": (0, 0, 0, 1),
    "post-small": (0, 0, 1, 1),
    "post-alpha": (0, 0, 1, 6),
    "pre-post": (1, 0, 1, 1),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_controls(name):
    stack, x = shaken(Stack(D, HEADS, 3, name, eps=EPS, final_norm=False)), draw(2, 6, D, mean=0.4)
    *there, alpha = CONTROLS[name]
    true = x
    for part in stack.sublayers:
        before, after, total = (part.before, part.after, part.sum)
        assert [not isinstance(n, nn.Identity) for n in (before, after, total)] == there
        n = lambda module: norm(module, centered=name != "pre-rms")  # noqa: E731
        true = n(total)(alpha * true + n(after)(part.branch(n(before)(true))))
    close(stack(x), true, 1e-11, name, "Another α? Another kind of norm?")


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_functions_in_a_norms_place(name):
    """Against Python's own tanh and erf, entry by entry."""
    n, x = shaken(Stack(D, HEADS, 1, name)).blocks[0].mlp.before, draw(2, 6, D, mean=0.4)
    of, shift = (math.tanh, 0.0) if name == "dyt" else (math.erf, n.shift.item())
    entries = torch.tensor([of(n.alpha.item() * v + shift) for v in x.flatten().tolist()], dtype=x.dtype)
    close(n(x), entries.view_as(x) * n.weight + n.bias, 1e-6, name, "The other function? The shift outside?")


# --- stacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("final", [None, True, False])
@FIVE
def test_streams_and_the_final_norm(name, final):
    stack, x = shaken(Stack(D, HEADS, 3, name, "layer", final, 16, EPS, "relu")), draw(2, LENGTH, D)
    streams = stack.streams(x)
    assert len(streams) == 7 and streams[0] is x, "one a sublayer, and the input"
    end = streams[-1]
    if final if final is not None else not PLACEMENTS[name].sum:
        end = norm(stack.final)(end)
    close(stack(x), end, 1e-11, "output", "The final norm missing, or twice where the sum was normalised already?")
    first, second, _ = stack.blocks
    assert stack.sublayers[:4] == [first.attention, first.mlp, second.attention, second.mlp]


@pytest.mark.parametrize(("name", "activation"), [("pre", "gelu"), ("post", "relu")])
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
    close(stack(x[:2, None]), got[:2, None], 1e-12, "a batch of more axes", "An axis counted from the front?")


@EACH
def test_a_later_token_does_not_reach_an_earlier_output(name):
    """It moves in a random direction: along 1, where LayerNorms stand before all that is read, no output would."""
    x = draw(2, LENGTH, D)
    other = x.clone()
    other[:, 3] += draw(2, D, seed=1)
    stack = shaken(Stack(D, HEADS, 4, name))
    moved = (stack(x) - stack(other)).abs().amax((0, 2))
    assert (moved[:3] == 0).all() and moved[3:].min() > 1e-6, moved


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
        # the spread of some thousand drawn weights, the same on every machine
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
    reference = matrices(layers=3)
    for key, value in matrices(name, 3).items():
        factor = 1.0
        if name == "deepnorm" and not key.endswith(("Q", "K")):
            factor = 24**-0.25
        if "small" in name and key.endswith(("out_proj.weight", "branch.2.weight")):
            factor = 6**-0.5
        torch.testing.assert_close(value, factor * reference[key], rtol=1e-6, atol=0, msg=key)


@EACH
def test_which_norms_are_found_and_that_every_parameter_counts(name):
    model, ids = shaken(LanguageModel(32, 8, Stack(D, HEADS, 4, name))), torch.arange(8).view(1, 8)
    dims = [site.dim for site in ng.find_norms(model, ids)]
    rules = [DESIGNS[name].rule(k, 8) for k in range(8)]
    letters = sum(1 if rule.step else len(rule.heads) for rule in rules[::2])
    stream = sum(rule.before + rule.after + rule.sum for rule in rules)
    ends = (not rules[-1].sum) + (name == "sphere")  # a final norm; the sphere's embedding
    counts = [letters, stream + ends] if name not in ("dyt", "derf", "none") else [0, 0]
    assert [dims.count(D // HEADS), dims.count(D)] == counts, "norms of the heads and of the stream"
    model(ids).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters()), "nothing depends on a parameter"


# --- language models --------------------------------------------------------------------------------------------------


def test_the_language_model_is_its_formula():
    model = shaken(LanguageModel(7, 6, Stack(D, HEADS, 2)))
    ids, w = torch.tensor([[3, 0, 6, 6, 1], [2, 2, 5, 4, 0]]), model.state_dict()
    x = F.one_hot(ids, 7).double() @ w["tokens.weight"] + w["positions.weight"][:5]
    close(model(ids), model.stack(x) @ w["head.weight"].T, 1e-12, "logits", "Positions along the batch? A tied head?")
    start = LanguageModel(300, 200, Stack(16, 2, 1))
    own = {name: p for name, p in start.named_parameters() if not name.startswith("stack")}
    assert set(own) == {"tokens.weight", "positions.weight", "head.weight"}, "a bias, or a tied head?"
    assert [float(p.detach().std()) for p in own.values()] == pytest.approx([0.25] * 3, rel=0.1), "1/√d"


def test_on_the_sphere_embeddings_have_length_root_d_and_logits_their_scales():
    model = normalise_weights(shaken(LanguageModel(32, 8, Stack(D, HEADS, 2, "sphere", eps=0.0))))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    start = math.sqrt(D) * F.normalize(model.tokens(ids) + model.positions.weight[:5], dim=-1)
    true = (model.stack(start) @ model.head.weight.T * model.logit_scale).detach()
    close(model(ids), true, 1e-12 * float(true.abs().max()), "logits", "The embedding's length? The scales?")


def test_weights_are_brought_to_the_sphere():
    model = normalise_weights(shaken(LanguageModel(32, 8, Stack(D, HEADS, 2, "sphere"))))
    block = model.stack.blocks[1]
    branch, (first, _, second) = block.attention.branch, block.mlp.branch
    rows = [model.tokens.weight, model.positions.weight, model.head.weight, branch.in_proj.weight, first.weight]
    for vectors in (*rows, branch.out_proj.weight.T, second.weight.T):
        assert vectors.shape[1] == D, "vectors of the wrong axis"
        assert torch.allclose(vectors.norm(dim=1), torch.ones(len(vectors)).double(), atol=1e-14)
