"""Who writes to a stream and who reads its norms: against hooks of this file, and against what the sources name."""

import normgeom as ng
import pytest
import torch
from family_norms import EXPECTED
from normgeom.checks import Draws
from normgeom.models.flow import double_throughout, stream, stream_readers, stream_writers
from normgeom.models.gpt2 import gpt2
from normgeom.models.modules import replace_module
from normgeom_lab.common.tiny import perturb
from surgery_models import CONVERTIBLE, FOLDABLE, IDS, apart, logits, name_of, uneven
from tiny_models import tiny, token_ids
from torch import nn

CASES = pytest.mark.parametrize(("family", "changes"), CONVERTIBLE + FOLDABLE, ids=name_of)


def seen_by_hooks(model):
    """What went into and came out of every module that has parameters of its own, in one forward pass."""
    into, out, names = {}, {}, {module: name for name, module in model.named_modules()}
    parts = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
    parts += [m for m in model.modules() if isinstance(m, nn.LayerNorm) and not m.elementwise_affine]

    def hook(module, args, kwargs, output):
        into[names[module]], out[names[module]] = next(iter((*args, *kwargs.values()))), output

    handles = [part.register_forward_hook(hook, with_kwargs=True) for part in parts]
    logits(model)
    for handle in handles:
        handle.remove()
    return into, out


@CASES
def test_readers_are_the_modules_that_read_a_norm_of_the_stream(family, changes):
    model = uneven(family, **changes)
    into, out = seen_by_hooks(model)
    for norm in stream(model).norms:
        output = out[norm.name].flatten(0, -2)
        same = {
            other
            for other, x in into.items()
            if x.is_floating_point() and x.shape[-1] == output.shape[-1] and torch.equal(x.flatten(0, -2), output)
        }
        assert same == set(norm.readers), f"who reads {norm.name}"
        assert norm.kept is None


@CASES
def test_the_stream_is_the_sum_of_what_its_writers_wrote(family, changes):
    model = uneven(family, **changes)
    (into, out), flow = seen_by_hooks(model), stream(model)
    assert len(set(flow.writers)) == len(flow.writers) and not flow.added and not flow.obstacle and not flow.unseen
    shape = (*IDS.shape, -1)
    # positions are those of a batch of one
    parts = [out[name] if out[name].dim() == 3 else out[name].reshape(shape) for name in flow.writers]
    end = into[flow.norms[-1].name].reshape(shape)
    assert apart(sum(parts), end) < 1e-13 * end.abs().max(), "a writer is missing, or one too many"
    for name, part in zip(flow.writers, parts, strict=True):
        assert part.abs().max() > 1e-3 * end.abs().max(), f"{name} writes too little to be noticed"


@CASES
def test_norms_are_those_of_the_source_and_the_rest_stands_aside(family, changes):
    flow = stream(tiny(family, **changes))
    expected = {norm.name: norm for norm in EXPECTED[family]}
    assert {norm.name for norm in (*flow.norms, *flow.aside)} == expected.keys()
    assert all("self_attn" in norm.name for norm in flow.aside)
    assert not any("self_attn." in norm.name for norm in flow.norms)
    for norm in flow.norms:
        assert norm.kind == expected[norm.name].kind and norm.dim == 32
        assert norm.offset == {"1 + w": 1.0}.get(expected[norm.name].gain, 0.0), "the gain that acts"


def test_the_weights_decide_nothing():
    """Those of which the model's own run would show little: gains of 1, biases of 0, no mean anywhere, no embedding."""
    model = tiny("falcon").double()
    expected = stream(uneven("falcon"))
    model.transformer.word_embeddings.weight.data.zero_()
    assert stream(model) == expected and len(expected.norms) == 3


def test_a_model_that_shows_no_stream_is_refused():
    with pytest.raises(ValueError, match=r"^model: this Linear runs no LayerNorm or RMSNorm$"):
        stream(nn.Linear(3, 3), torch.randn(2, 3))
    with pytest.raises(TypeError, match=r"^example_inputs: none given, and none can be made for a Linear$"):
        stream(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"^model: a float64 copy of this Linear does not run \(.*shapes"):
        stream(nn.Linear(3, 3), torch.randn(2, 4))
    with torch.device("meta"):
        model = tiny("gpt2")
    with pytest.raises(ValueError, match=r"^model: expected all its parameters on one device .*, got meta"):
        stream(model)


# a GPT-2's parameters


def twin(which=0):
    return ng.twins(gpt2(vocabulary=64, length=16, width=12, layers=2, heads=3), 3)[which]


def last_stream(model, ids):
    seen = []
    handle = model.transformer.ln_f.register_forward_hook(lambda module, args, y: seen.append(args[0]))
    logits(model, ids)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_nothing_but_the_writers_writes_to_the_stream(which):
    """With all of them at zero the stream is zero; with the others at zero it is not."""
    ids, model = token_ids(2, 8), perturb(twin(which), Draws(0))
    for p in stream_writers(model):
        p.data.zero_()
    assert not last_stream(model, ids).any(), "something that writes to the stream is missing"
    for place in range(len(stream_writers(model))):
        model = perturb(twin(which), Draws(0))
        p = stream_writers(model)[place]
        assert p.shape[-1] == 12, "the last axis must be the stream"
        before = last_stream(model, ids)
        p.data += 1.0
        assert not torch.equal(last_stream(model, ids), before), f"writer {place} does not write"


def test_writers_begin_with_the_embeddings_and_readers_see_the_stream_by_their_first_axis():
    model = twin()
    first, second, *_ = stream_writers(model)
    assert first is model.transformer.wte.weight and second is model.transformer.wpe.weight
    parts = [module for block in model.transformer.h for module in (block.attn.c_attn, block.mlp.c_fc)]
    assert [id(p) for p in stream_readers(model)] == [id(module.weight) for module in parts]


@pytest.mark.parametrize("make", [lambda: tiny("llama"), lambda: tiny("bert")])
def test_writers_of_what_is_no_gpt2_are_refused(make):
    with pytest.raises(ValueError, match=r"^model: expected a GPT-2 or its like, of embeddings and Conv1D, got a "):
        stream_writers(make())


# float64 throughout


class Wide(nn.Module):
    """A Llama's norm, which computes in float32, in the dtype of its input."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


def test_float64_throughout_is_a_model_whose_code_says_float64():
    model, wide = uneven("llama"), uneven("llama")
    for module in [module for module in wide.modules() if "RMSNorm" in type(module).__name__]:
        replace_module(wide, module, Wide(module))
    assert apart(logits(model), logits(wide)) > 1e-9
    with double_throughout():
        assert apart(logits(model), logits(wide)) < 1e-12
    assert apart(logits(model), logits(wide)) > 1e-9, "the mode outlives its block"


def test_float64_throughout_leaves_float64_as_it_is():
    model = uneven("gpt2")
    plain = logits(model)
    with double_throughout():
        assert torch.equal(logits(model), plain)


@pytest.mark.parametrize("family", ["gptj", "gpt_neo", "mpt"])
def test_attention_in_float32_is_not_float64(family):
    model = uneven(family)
    plain = logits(model)
    with double_throughout():
        assert 1e-10 < apart(logits(model), plain) < 1e-4
