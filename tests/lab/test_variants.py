"""The variants of a GPT-2 differ only in their norms."""

import normgeom as ng
import pytest
import torch
from norm_checks import close
from normgeom_lab.common.variants import NORMS, Centring, variant
from tiny_models import TWO_BLOCKS, logits, only_the_norms_differ, token_ids


@pytest.mark.parametrize("norm", NORMS)
def test_the_norm_is_the_only_difference(norm):
    affine = {"layer": ("weight", "bias"), "centre": ("weight", "bias"), "rms": ("weight",)}.get(norm, ())
    kind = "" if norm == "none" or "centre" in norm else norm.split("-")[0]
    only_the_norms_differ(variant(TWO_BLOCKS, 3, norm), ng.twins(TWO_BLOCKS, 3)[0], affine, kind)


@torch.no_grad()
def centre(model):
    """Take the direction 1 from all that writes to the stream, in place; biases are drawn first."""
    for block in model.transformer.h:
        for writer in (block.attn.c_proj, block.mlp.c_proj):
            writer.bias.copy_(torch.linspace(-1, 1, len(writer.bias)) ** 2)
            for parameter in (writer.weight, writer.bias):
                parameter -= parameter.mean(-1, keepdim=True)
    for embedding in (model.transformer.wte, model.transformer.wpe):
        embedding.weight -= embedding.weight.mean(-1, keepdim=True)
    return model


@pytest.mark.parametrize(("layer", "rms"), [("layer", "rms"), ("layer-plain", "rms-plain")])
def test_twins_differ_by_the_mean_alone(layer, rms):
    """Where no hidden vector has a mean, the initial logits are the same; else they are not."""
    ids = token_ids(2, 16)
    for change, same in ((lambda model: model, False), (centre, True)):
        a, b = (logits(change(variant(TWO_BLOCKS, 3, norm).double()), ids) for norm in (layer, rms))
        off = float((a - b).abs().max())
        assert off <= 1e-12 if same else off > 1e-4, f"logits differ by {off:.1e}: something else than the norm?"


def test_plain_variants_begin_as_those_with_an_affine_part():
    found = {norm: logits(variant(TWO_BLOCKS, 3, norm).double(), token_ids(2, 16)) for norm in NORMS}
    for norm in ("layer", "rms", "centre"):
        close(found[f"{norm}-plain"], found[norm], 1e-12, f"logits of {norm}-plain", "Another ε? A mean that stays?")
    for a, b in (("none", "layer"), ("none", "centre"), ("centre", "layer")):
        assert (found[a] - found[b]).abs().max() > 1e-4, f"{a} is {b}"


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_centring_is_a_product_with_the_projection(dtype):
    """γ ⊙ (x − mean) + β as the matrix diag(γ)(I − 11ᵀ/d), in float64."""
    draw = torch.Generator().manual_seed(3)
    x = (3 + torch.randn(5, 7, generator=draw, dtype=torch.float64)).to(dtype)
    plain, full = Centring(7, affine=False), Centring(7).to(dtype)
    assert not list(plain.parameters()) and full.weight.eq(1).all() and full.bias.eq(0).all()
    with torch.no_grad():
        for p in full.parameters():
            p.copy_(torch.randn(7, generator=draw))
    expected = x.double() @ (torch.eye(7, dtype=torch.float64) - 1 / 7)
    affine = expected * full.weight.double() + full.bias.double()
    bound = 8 * torch.finfo(dtype).eps * float(x.abs().max())
    for got, wanted in ((plain(x), expected), (full(x), affine)):
        assert got.dtype == dtype
        close(
            got, wanted, bound * (1 + float(wanted.detach().abs().max())), "centring", "A mean that stays? A division?"
        )
