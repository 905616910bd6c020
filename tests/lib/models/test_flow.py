"""Who writes to a stream and who reads its norms: against hooks of this file, and against what the sources name."""

import normgeom as ng
import pytest
import torch
from family_norms import EXPECTED
from normgeom.models.flow import _drawn, double_throughout, stream
from normgeom.models.watch import replace_module
from surgery_models import CONVERTIBLE, FOLDABLE, IDS, apart, logits, name_of, uneven
from tiny_models import tiny
from torch import nn

FIRST = ["gpt2", "gpt_neox", "phi_qk", "opt", "persimmon", "mpt", "gemma", "qwen3"]

CASES = pytest.mark.parametrize(
    ("family", "changes"),
    [
        pytest.param(
            *case, marks=[] if not case[1] and case[0] in FIRST else [pytest.mark.slow], id=",".join(map(name_of, case))
        )
        for case in CONVERTIBLE + FOLDABLE
    ],
)


def seen_by_hooks(model):
    """What went into and came out of every module that has parameters of its own, in one forward pass."""
    parts = [name for name, m in model.named_modules() if any(True for _ in m.parameters(recurse=False))]
    parts += [name for name, m in model.named_modules() if isinstance(m, nn.LayerNorm) and not m.elementwise_affine]
    into, out = {}, {}
    with ng.watch(model, parts, lambda name, x, y: (into.update({name: x}), out.update({name: y}))):
        logits(model)
    return into, out


@CASES
def test_the_flow_is_what_hooks_see(family, changes):
    """Readers read a norm's output, the stream is the sum of what its writers wrote, norms are those of the source."""
    model = uneven(family, **changes)
    (into, out), flow = seen_by_hooks(model), stream(model)
    expected = {norm.name: norm for norm in EXPECTED[family]}
    assert {norm.name for norm in (*flow.norms, *flow.aside)} == expected.keys()
    assert all("self_attn." in norm.name for norm in flow.aside)
    for norm in flow.norms:
        assert norm.kind == expected[norm.name].kind and norm.dim == 32 and "self_attn." not in norm.name
        assert norm.sources[0][1] == {"1 + w": 1.0}.get(expected[norm.name].gain, 0.0), "the gain that acts"
        output = out[norm.name].flatten(0, -2)
        same = {
            other
            for other, x in into.items()
            if x.is_floating_point() and x.shape[-1] == output.shape[-1] and torch.equal(x.flatten(0, -2), output)
        }
        assert same == set(norm.readers) and norm.kept is None, f"who reads {norm.name}"
    assert len(set(flow.writers)) == len(flow.writers) and not flow.added and not flow.obstacle and not flow.unseen
    shape = (*IDS.shape, -1)
    # positions are those of a batch of one
    parts = [out[name] if out[name].dim() == 3 else out[name].reshape(shape) for name in flow.writers]
    end = into[flow.norms[-1].name].reshape(shape)
    assert apart(sum(parts), end) < 1e-13 * end.abs().max(), "a writer is missing, or one too many"
    assert all(part.abs().max() > 1e-3 * end.abs().max() for part in parts), "one writes too little to be noticed"


def test_the_weights_decide_nothing():
    """Those of which the model's own run would show little: gains of 1, biases of 0, no mean anywhere, no embedding."""
    model = tiny("falcon").double()
    expected = stream(uneven("falcon"))
    model.transformer.word_embeddings.weight.data.zero_()
    assert str(stream(model)) == str(expected) and len(expected.norms) == 3


def test_drawn_matrices_keep_the_size_of_vectors():
    assert float(_drawn(nn.Linear(400, 300)).weight.detach().var()) * 400 == pytest.approx(1, rel=0.05)


def test_a_model_that_shows_no_stream_is_refused():
    with pytest.raises(ValueError, match=r"^model: a copy of this Linear runs no LayerNorm or RMSNorm$"):
        stream(nn.Linear(3, 3), torch.randn(2, 3))
    with pytest.raises(TypeError, match=r"^example_inputs: none given, and none can be made for a Linear$"):
        stream(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"^model: no float64 copy of this Linear runs with gradients \(.*shapes"):
        stream(nn.Linear(3, 3), torch.randn(2, 4))
    with torch.device("meta"):
        model = tiny("gpt2")
    with pytest.raises(ValueError, match=r"^model: expected all its parameters on one device .*, got meta"):
        stream(model)


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
