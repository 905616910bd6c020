"""Designs since 2023 against their sources' formulas, written out here in double precision, each with a near miss."""

import math

import normgeom as ng
import pytest
import torch
from norm_checks import draw, true_layer_norm, true_rms_norm
from normgeom_lab.common.stacks import (
    DESIGNS,
    PLACEMENTS,
    Block,
    LanguageModel,
    Placement,
    Stack,
    normalise_weights,
    rules_of,
)

D, HEADS, EPS, TOLERANCE = 12, 3, 1e-3, 1e-12


def shaken(module, seed=7):
    """In double precision, with every parameter drawn: gains are not 1, step sizes have both signs."""
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(draw(*p.shape, seed=seed + i, scale=0.5, mean=0.6 if p.dim() == 1 else 0.0))
    return module


def norm(module, centered=True):
    """The norm of a module by the formula of its name."""
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
    return inner * (1 + torch.erf(inner / math.sqrt(2))) / 2 @ branch[2].weight.T + branch[2].bias


def of_head(module, centered=True):
    true = true_layer_norm if centered else true_rms_norm
    weight, bias = (getattr(module.norm, name, None) for name in ("weight", "bias"))
    return lambda t, head: true(t, weight, bias, EPS)


def pre(block, x, scale=1.0, **norms):
    x = x + attention(block.attention.branch, scale * norm(block.attention.before)(x), **norms)
    return x + mlp(block.mlp.branch, scale * norm(block.mlp.before)(x))


def post(block, x):
    x = norm(block.attention.sum)(x + attention(block.attention.branch, x))
    return norm(block.mlp.sum)(x + mlp(block.mlp.branch, x))


def mixed(blocks, x, early=lambda number, many: number <= many // 4):
    for number, block in enumerate(blocks, 1):
        x = (post if early(number, len(blocks)) else pre)(block, x)
    return x


def hybrid(blocks, x, v=True):
    """Zhuo et al. (2025), equations 5 and 6: Y = MHA(X) + X, X⁺ = FFN(Norm(Y)) + Norm(Y)."""
    for block in blocks:
        branch, n = block.attention.branch, norm(block.attention.sum)
        norms = {f"{letter}_norm": of_head(branch.norms[letter]) for letter in ("qkv" if v else "qk")}
        y = attention(branch, x, **norms) + x
        x = mlp(block.mlp.branch, n(y)) + n(y)
    return x


def scaled(blocks, x, by=lambda number: 1 / math.sqrt(number)):
    """Sun et al. (2025), equation 12: the norm's output, gain and bias included, over √ℓ; ℓ counts blocks."""
    for number, block in enumerate(blocks, 1):
        x = pre(block, x, by(number))
    return x


def keel(blocks, x, late=True):
    """Chen and Wei (2026), equation 8: LN(αx + F(LN(x))), α the number of sublayers; none of it at the first one."""
    alpha = 2 * len(blocks)
    for number, block in enumerate(blocks, 1):
        a, m = block.attention, block.mlp
        branch = attention(a.branch, norm(a.before)(x))
        first = number == 1 and late
        x = x + branch if first else norm(a.sum)(alpha * x + branch)
        x = norm(m.sum)((1 if first else alpha) * x + mlp(m.branch, norm(m.before)(x)))
    return x


def qk(blocks, x, one_gain=True):
    for block in blocks:
        norms = block.attention.branch.norms
        q, k = of_head(norms["q"]), of_head(norms["k"])
        x = pre(block, x, q_norm=q, k_norm=k if one_gain else q)
    return x


def ngpt(blocks, x, step=lambda h, target, a: h + a * (target - h)):
    """Loshchilov et al. (2025), equations 10, 11, 15 and 16: vectors of length 1, softmax factor √d_k."""
    unit = lambda v: v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)  # noqa: E731
    size, h = D // HEADS, unit(x)
    for block in blocks:
        branch = block.attention.branch
        s_qk = branch.norms["q"].weight * math.sqrt(D)
        by = lambda t, head, s=s_qk: unit(t) * s[head * size : (head + 1) * size]  # noqa: E731
        steps = [(0.05 * math.sqrt(D) * part.steps).abs() for part in (block.attention, block.mlp)]
        # the matrices read √d h: the factor that the authors give to u and ν
        read = math.sqrt(D) * h
        h = unit(step(h, unit(attention(branch, read, by, by, scale=math.sqrt(size))), steps[0]))
        h = unit(step(h, unit(mlp(block.mlp.branch, math.sqrt(D) * h)), steps[1]))
    return math.sqrt(D) * h


def sums(blocks, x, alpha=1.0, before=False):
    """N(αx + f(x)), or N(αx + f(N(x))): post-norm with a factor, and with Keel's other norm."""
    for block in blocks:
        for part, branch in ((block.attention, attention), (block.mlp, mlp)):
            read = norm(part.before)(x) if before else x
            x = norm(part.sum)(alpha * x + branch(part.branch, read))
    return x


# The design, its source's formula, and the same with one thing wrong.
TRUTHS = {
    "mix": (mixed, lambda blocks, x: mixed(blocks, x, lambda number, many: number > many - many // 4)),
    "hybrid": (hybrid, lambda blocks, x: hybrid(blocks, x, v=False)),
    "scaled": (scaled, lambda blocks, x: scaled(blocks, x, lambda number: 1 / number)),
    "keel": (keel, lambda blocks, x: keel(blocks, x, late=False)),
    "qk": (qk, lambda blocks, x: qk(blocks, x, one_gain=False)),
    "sphere": (ngpt, lambda blocks, x: ngpt(blocks, x, lambda h, target, a: h + a * target)),
    "post-small": (sums, lambda blocks, x: sums(blocks, x, alpha=1.1)),
    "hybrid-small": (hybrid, lambda blocks, x: hybrid(blocks, x, v=False)),
    "post-alpha": (lambda blocks, x: sums(blocks, x, 2 * len(blocks)), lambda blocks, x: sums(blocks, x, len(blocks))),
    "pre-post": (lambda blocks, x: sums(blocks, x, before=True), sums),
}


def test_every_design_has_its_formula():
    assert set(TRUTHS) == set(DESIGNS)


@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_is_its_sources_formula(name):
    stack = shaken(Stack(D, HEADS, 5, name, eps=EPS * (name != "sphere"), final_norm=False))
    x = draw(2, 6, D, mean=0.4)
    x = x if name != "sphere" else true_rms_norm(x, None, None, 0.0)
    if name == "keel":  # its first sublayer has no norm on the sum, whatever is drawn for others
        assert isinstance(stack.blocks[0].attention.sum, torch.nn.Identity)
    with torch.no_grad():
        got = stack(x)
        try:
            wrong = TRUTHS[name][1](stack.blocks, x)
        except AttributeError:  # the near miss asks for a norm that is not there
            wrong = None
        true = TRUTHS[name][0](stack.blocks, x)
    scale = float(true.abs().max())
    assert float((got - true).abs().max()) <= TOLERANCE * scale, f"{name}: not what its source computes"
    assert wrong is None or float((got - wrong).abs().max()) > 1e-4 * scale, f"{name}: the near miss passes too"


@pytest.mark.parametrize("norm", ["dyt", "derf"])
def test_functions_in_a_norms_place(norm):
    """Against Python's own tanh and erf, entry by entry, in a block that is otherwise pre-norm."""
    block = shaken(Block(D, HEADS, "pre", norm, eps=EPS))
    function = {"dyt": math.tanh, "derf": math.erf}[norm]
    wrong = {"dyt": math.erf, "derf": math.tanh}[norm]

    def by(part, of):
        shift = getattr(part, "shift", torch.zeros(1)).item()
        entries = lambda x: torch.tensor([of(part.alpha.item() * v + shift) for v in x.flatten().tolist()])  # noqa: E731
        return lambda x: entries(x).to(x).view_as(x) * part.weight + part.bias

    def truth(x, of):
        x = x + attention(block.attention.branch, by(block.attention.before, of)(x))
        return x + mlp(block.mlp.branch, by(block.mlp.before, of)(x))

    x = draw(2, 6, D, mean=0.4)
    with torch.no_grad():
        got, true, near = block(x), truth(x, function), truth(x, wrong)
    assert float((got - true).abs().max()) <= 1e-6 * float(true.abs().max()), "Python's function, to single precision"
    assert float((got - near).abs().max()) > 1e-3, "tanh and erf cannot be told apart here"


def test_rules_by_block():
    assert [attention.sum for attention, _ in rules_of("mix", 12)] == [True] * 3 + [False] * 9
    assert [round(mlp.scale**-2) for _, mlp in rules_of("scaled", 5)] == [1, 2, 3, 4, 5]
    assert {pair[0].alpha for pair in rules_of("keel", 6)[1:]} == {12.0}, "α counts sublayers"
    assert all(pair == (PLACEMENTS["pre"],) * 2 for pair in rules_of("pre", 3))
    with pytest.raises(ValueError, match=r"placement: expected one of 'pre'.*'pre-post', got 'peri'"):
        rules_of("peri", 4)
    assert Placement() == Placement(alpha=1.0, scale=1.0), "no norm and no factor unless it is said"


@pytest.mark.parametrize(("name", "usual"), [("post-small", "post"), ("hybrid-small", "hybrid")])
def test_a_small_start_is_of_the_output_matrices_alone(name, usual):
    starts = []
    for placement in (name, usual):
        torch.manual_seed(3)
        starts.append(dict(Stack(D, HEADS, 8, placement).named_parameters()))
    for key, weight in starts[0].items():
        output = key.endswith(("out_proj.weight", "branch.2.weight"))
        assert torch.allclose(weight, starts[1][key] / (4 if output else 1), rtol=1e-6), key  # 1/√(2 · 8)


@pytest.mark.parametrize("name", DESIGNS)
def test_which_norms_are_found(name):
    model = shaken(LanguageModel(32, 8, Stack(D, HEADS, 4, name)))
    ids = torch.arange(8).view(1, 8)
    sites = ng.find_norms(model, ids)
    dims = [site.dim for site in sites]
    blocks = rules_of(name, 4)
    letters = sum(1 if pair[0].step else len(pair[0].heads) for pair in blocks)
    whole = sum(rule.before + rule.after + rule.sum for pair in blocks for rule in pair)
    ends = (not blocks[-1][1].sum) + (name == "sphere")  # a final norm; the sphere's embedding
    assert dims.count(D // HEADS) == letters, "norms of the heads"
    assert dims.count(D) == whole + ends, "norms of the stream"


@pytest.mark.parametrize("norm", ["dyt", "derf"])
def test_functions_are_not_taken_for_norms(norm):
    model = shaken(LanguageModel(32, 8, Stack(D, HEADS, 2, "pre", norm)))
    assert ng.find_norms(model, torch.arange(8).view(1, 8)) == []


def test_logits_on_the_sphere_are_cosines():
    """Equation 3 and the sixth step of the recipe: z = E h s_z, with vectors of length 1."""
    model = normalise_weights(shaken(LanguageModel(32, 8, Stack(D, HEADS, 2, "sphere", eps=0.0))))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        start = model.tokens(ids) + model.positions.weight[:5]
        start = math.sqrt(D) * start / start.norm(dim=-1, keepdim=True)
        h = ngpt(model.stack.blocks, start) / math.sqrt(D)
        s_z = model.logit_scale * math.sqrt(D)
        true, got = h @ model.head.weight.T * s_z, model(ids)
    assert float((got - true).abs().max()) <= 1e-12 * float(true.abs().max())
    assert float(((h @ model.head.weight.T).abs()).max()) <= 1, "cosines"


def test_weights_are_brought_to_the_sphere():
    model = normalise_weights(shaken(LanguageModel(32, 8, Stack(D, HEADS, 2, "sphere"))))
    block = model.stack.blocks[1]
    branch, (first, _, second) = block.attention.branch, block.mlp.branch
    rows = [model.tokens.weight, model.head.weight, branch.in_proj.weight, first.weight]
    for vectors in (*rows, branch.out_proj.weight.T, second.weight.T):
        assert vectors.shape[1] == D, "vectors of the wrong axis"
        assert torch.allclose(vectors.norm(dim=1), torch.ones(len(vectors)).double(), atol=1e-14)
    with pytest.raises(ValueError, match="model: expected one of placement 'sphere'"):
        normalise_weights(LanguageModel(32, 8, Stack(D, HEADS, 2)))
