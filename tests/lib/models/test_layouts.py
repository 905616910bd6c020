"""Layouts: against what a forward pass shows of readers and writers, and against the norms that the sources name."""

import copy

import pytest
import torch
from family_norms import EXPECTED
from normgeom.models.layouts import LAYOUTS, layout_of
from surgery_models import CONVERTIBLE, FOLDABLE, IDS, name_of, uneven
from tiny_models import FAMILIES, tiny
from torch import nn
from transformers import AutoModel, GPT2DoubleHeadsModel

CASES = CONVERTIBLE + FOLDABLE
WITH_LAYOUT = {family for family, _ in CASES}


class Seen:
    """What went into and came out of every module that has parameters of its own, in one forward pass."""

    def __init__(self, model):
        self.into, self.out = {}, {}
        names = {module: name for name, module in model.named_modules()}
        parts = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
        parts += [m for m in model.modules() if isinstance(m, nn.LayerNorm) and not m.elementwise_affine]

        def hook(module, args, kwargs, output):
            self.into[names[module]] = next(iter((*args, *kwargs.values())))
            self.out[names[module]] = output

        handles = [part.register_forward_hook(hook, with_kwargs=True) for part in parts]
        with torch.no_grad():
            model(IDS)
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(("family", "changes"), CASES, ids=name_of)
def test_readers_are_the_modules_that_read_a_norm_of_the_stream(family, changes):
    model = uneven(family, **changes)
    seen = Seen(model)
    for name, norm, readers in layout_of(model).readers_of(model):
        assert model.get_submodule(name) is norm
        output = seen.out[name].flatten(0, -2)
        reading = {
            other
            for other, x in seen.into.items()
            if x.is_floating_point() and x.shape[-1] == output.shape[-1] and torch.equal(x.flatten(0, -2), output)
        }
        assert reading == {reader for reader, _ in readers}, f"who reads {name}"
        assert all(model.get_submodule(reader) is module for reader, module in readers)


@pytest.mark.parametrize(("family", "changes"), CASES, ids=name_of)
def test_the_stream_is_the_sum_of_what_its_writers_wrote(family, changes):
    model = uneven(family, **changes)
    seen, layout = Seen(model), layout_of(model)
    writers = [name for name, _ in layout.writers_of(model)]
    assert len(set(writers)) == len(writers)
    shape = (*IDS.shape, -1)
    # positions are those of a batch of one
    parts = [seen.out[name] if seen.out[name].dim() == 3 else seen.out[name].reshape(shape) for name in writers]
    stream = seen.into[layout.final].reshape(shape)
    assert (sum(parts) - stream).abs().max() < 1e-13 * stream.abs().max(), "a writer is missing, or one too many"
    for name, part in zip(writers, parts, strict=True):
        assert part.abs().max() > 1e-3 * stream.abs().max(), f"{name} writes too little to be noticed"


@pytest.mark.parametrize(("family", "changes"), CASES, ids=name_of)
def test_norms_are_those_of_the_source_and_the_rest_stands_aside(family, changes):
    model = tiny(family, **changes)
    layout = layout_of(model)
    stream, aside = ({name for name, *_ in of(model)} for of in (layout.readers_of, layout.aside_of))
    assert not stream & aside
    assert stream | aside == {norm.name for norm in EXPECTED[family]}
    assert all(".self_attn." in name for name in aside)
    assert layout.offset == {"1 + w": 1.0}.get(EXPECTED[family][0].gain, 0.0), "the gain that acts"


def test_every_layout_is_tested():
    assert {type(tiny(family)).__name__ for family in WITH_LAYOUT} == set(LAYOUTS)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in WITH_LAYOUT])
def test_other_families_have_none(family):
    with pytest.raises(ValueError, match=rf"^model: a {type(tiny(family)).__name__} has no layout: "):
        layout_of(tiny(family))


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("bert", {}, r"normalises the stream itself, .*\(post-norm\)"),
        ("openai_gpt", {}, r"\(post-norm\)"),
        ("opt", dict(do_layer_norm_before=False), r"\(post-norm\)"),
        ("opt", dict(word_embed_proj_dim=16), "a projection stands between"),
        ("opt", dict(_remove_final_layer_norm=True), "no norm stands before its head"),
        ("bloom", {}, "normalises its embeddings"),
        ("gemma2", {}, "normalises what a block adds"),
        ("gemma3", {}, "normalises what a block adds"),
        ("olmo2", {}, "normalises what a block adds"),
        ("gpt2", dict(add_cross_attention=True), "cross-attention"),
        ("gpt_bigcode", dict(add_cross_attention=True, multi_query=False), "cross-attention"),
        ("falcon", {}, "a layout is known of GPT2LMHeadModel, "),
    ],
    ids=name_of,
)
def test_the_reason_is_given(family, changes, reason):
    with pytest.raises(ValueError, match=rf"^model: .* has no layout: .*{reason}"):
        layout_of(tiny(family, **changes))


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "llama"])
def test_a_model_without_its_head_is_refused(family):
    base = AutoModel.from_config(tiny(family).config)
    with pytest.raises(ValueError, match=r"^model: .* has no layout: expected the model with its language-modelling"):
        layout_of(base)


def test_another_head_beside_it_is_refused():
    with pytest.raises(ValueError, match=r"^model: a GPT2DoubleHeadsModel has no layout: expected the model with"):
        layout_of(GPT2DoubleHeadsModel(tiny("gpt2").config))


def test_a_module_without_a_place_is_refused():
    model = tiny("gpt2")
    model.transformer.h[1].mlp.adapter = nn.Linear(32, 32)
    with pytest.raises(ValueError, match=r"no layout: transformer\.h\.1\.mlp\.adapter, a Linear, has no place in it$"):
        layout_of(model)


def test_a_part_that_is_gone_is_named():
    model = tiny("gpt2")
    del model.transformer.h[1].ln_2
    with pytest.raises(ValueError, match=r"^model: this GPT2LMHeadModel lacks a part of its layout .*ln_2"):
        layout_of(model)


def test_what_has_no_configuration_is_refused():
    with pytest.raises(ValueError, match=r"^model: a Linear has no layout: a layout is known of "):
        layout_of(nn.Linear(2, 2))


def test_a_copy_has_the_same_layout():
    model = tiny("gpt2")
    assert layout_of(copy.deepcopy(model)) is layout_of(model)
