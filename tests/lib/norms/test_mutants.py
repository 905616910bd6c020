"""Wrong norms, mistakes that teaching code and kernels really make: a check kills each, and its message names it."""

import norm_checks
import pytest
import torch
from norm_checks import true_layer_norm, true_rms_norm


def mean(x):
    return x.mean(-1, keepdim=True)


def affine(n, weight, bias):
    n = n if weight is None else n * weight
    return n if bias is None else n + bias


def root(c, eps):
    return (mean(c.square()) + eps).sqrt()


class Once(torch.autograd.Function):
    """Right values and gradients, saved outside of the graph: the second derivative is lost in silence."""

    @staticmethod
    def forward(ctx, c, eps):
        ctx.scale = root(c, eps)
        ctx.n = c / ctx.scale
        return ctx.n

    @staticmethod
    def backward(ctx, grad):
        return (grad - ctx.n * mean(grad * ctx.n)) / ctx.scale, None


def in_place(c, eps):
    return c / root(c, eps) if c.requires_grad else c.div_(root(c, eps))


# the normalised vector made of the centred one (RMSNorm: of the vector) and ε, and a word of the message
NORMALISED = {
    "ε outside the root": lambda c, eps: c / (mean(c.square()).sqrt() + eps),
    "ε missing": lambda c, eps: c / mean(c.square()).sqrt(),
    "ε multiplied": lambda c, eps: c / (mean(c.square()) * (1 + eps)).sqrt(),
    "ε squared": lambda c, eps: c / root(c, eps**2),
    "clamped": lambda c, eps: c / mean(c.square()).clamp(min=eps).sqrt(),
    "Unbiased variance (d−1)": lambda c, eps: c / (c.square().sum(-1, keepdim=True) / (c.shape[-1] - 1) + eps).sqrt(),
    "Absolute deviation": lambda c, eps: c / (mean(c.abs()).square() + eps).sqrt(),
    "Missing √d": lambda c, eps: c / (c.square().sum(-1, keepdim=True) + eps).sqrt(),
    "Detached statistics": lambda c, eps: c / root(c, eps).detach(),
    "Mean of the whole batch": lambda c, eps: c / (c.square().mean() + eps).sqrt(),
    "No double backward": Once.apply,
}
AFFINE = {
    "γ forgotten": lambda n, w, b: affine(n, None, b),
    "β forgotten": lambda n, w, b: affine(n, w, None),
    "β before γ": lambda n, w, b: affine(affine(n, None, b), w, None),
    "Gain 1 + γ": lambda n, w, b: affine(n, None if w is None else 1 + w, b),
    "β subtracted": lambda n, w, b: affine(n, w, None if b is None else -b),
}
CENTERED = {
    "one mean only": lambda x: x - mean(x),
    "Mean not subtracted": lambda x: x,
    "E[x²]−E[x]²": lambda x: (x - mean(x)) * (mean((x - mean(x)).square()) / (mean(x.square()) - mean(x) ** 2)).sqrt(),
}


def norm_of(truth, normalised=lambda c, eps: c / root(c, eps), affine=affine, center=None, inner=None, default=None):
    """A norm that is right where nothing else is given: in float32 at least, or in the dtypes of ``inner``."""
    layer = truth is true_layer_norm
    center = center or ((lambda x: x - mean(x) - mean(x - mean(x))) if layer else lambda x: x)

    def norm(x, weight=None, bias=None, eps=default or (1e-5 if layer else 1e-6)):
        wide = torch.promote_types(x.dtype, torch.float32)
        first, last = inner(x.dtype, wide) if inner else (wide, wide)
        gain, shift = (None if t is None else t.to(last) for t in (weight, bias))
        return affine(normalised(center(x.to(first)), eps).to(last), gain, shift).to(x.dtype)

    return norm


BOTH = true_layer_norm, true_rms_norm
WRONG = [
    *((truth, word, dict(normalised=f)) for word, f in NORMALISED.items() for truth in BOTH),
    *((truth, word, dict(affine=f)) for word, f in AFFINE.items() for truth in BOTH),
    *((true_layer_norm, word, dict(center=f)) for word, f in CENTERED.items()),
    (true_rms_norm, "subtracted where it should stay", dict(center=lambda x: x - mean(x))),
    (true_layer_norm, "Statistics in the input's dtype", dict(inner=lambda narrow, wide: (narrow, narrow))),
    (true_rms_norm, "Rounded twice", dict(inner=lambda narrow, wide: (wide, narrow))),
    (true_rms_norm, "In-place", dict(normalised=in_place)),
    (true_layer_norm, "Wrong default of ε", dict(default=1e-6)),
]


@pytest.mark.parametrize(("truth", "word", "parts"), WRONG, ids=[f"{t.__name__}-{w}" for t, w, _ in WRONG])
def test_a_wrong_norm_is_killed_by_name(truth, word, parts):
    found = norm_checks.failures(norm_of(truth, **parts), truth)
    assert any(word in message for message in found.values()), f"no check names this mistake: {found}"


@pytest.mark.parametrize("truth", BOTH)
def test_the_right_norm_passes(truth):
    assert norm_checks.failures(norm_of(truth), truth) == {}
