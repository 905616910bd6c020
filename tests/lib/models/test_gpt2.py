"""Small GPT-2s: sizes, what writes to the stream and what reads it, and random weights that a seed decides."""

import normgeom as ng
import pytest
import torch
from normgeom.models.gpt2 import gpt2, read, written
from normgeom_lab.common.tiny import shaken, untrained
from tiny_models import token_ids
from torch import nn
from transformers import BertConfig, BertModel

CONFIG = gpt2(vocabulary=64, length=16, width=12, layers=2, heads=3)


def twin(which=0):
    return ng.twins(CONFIG, 3)[which]


def stream(model, ids):
    """What enters the last norm."""
    seen = []
    handle = model.transformer.ln_f.register_forward_hook(lambda module, args, y: seen.append(args[0]))
    with torch.no_grad():
        model(ids)
    handle.remove()
    return seen[0]


def test_the_sizes_are_those_asked_for():
    model = twin()
    assert model.transformer.wte.weight.shape == (64, 12) and model.transformer.wpe.weight.shape == (16, 12)
    assert len(model.transformer.h) == 2 and model.transformer.h[0].attn.num_heads == 3
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0}, "dropout"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(layers=0), "^layers: expected at least 1, got 0$"),
        (dict(vocabulary=-1), "^vocabulary: expected at least 1, got -1$"),
        (dict(heads=5), "^heads: expected a divisor of the width 12, got 5$"),
    ],
)
def test_sizes_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        gpt2(**{**dict(vocabulary=64, length=16, width=12, layers=2, heads=3), **change})


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_nothing_but_the_writers_writes_to_the_stream(which):
    """With all of them at zero the stream is zero; with the others at zero it is not."""
    ids, model = token_ids(2, 8), shaken(twin(which), 0.3, 0)
    with torch.no_grad():
        for p in written(model):
            p.zero_()
    assert not stream(model, ids).any(), "something that writes to the stream is missing"
    for place in range(len(written(model))):
        model = shaken(twin(which), 0.3, 0)
        p = written(model)[place]
        assert p.shape[-1] == 12, "the last axis must be the stream"
        before = stream(model, ids)
        with torch.no_grad():
            p += 1.0
        assert not torch.equal(stream(model, ids), before), f"writer {place} does not write"


def test_the_token_embedding_comes_first():
    model = twin()
    assert written(model)[0] is model.transformer.wte.weight, "which chapters leave out where it is the head's matrix"
    assert written(model)[1] is model.transformer.wpe.weight


def test_readers_see_the_stream_by_their_first_axis():
    model, seen = twin(), []
    blocks = [module for block in model.transformer.h for module in (block.attn.c_attn, block.mlp.c_fc)]
    assert [id(p) for p in read(model)] == [id(module.weight) for module in blocks]
    for module in blocks:
        module.register_forward_hook(lambda module, args, y: seen.append(args[0] @ module.weight + module.bias - y))
    with torch.no_grad():
        model(token_ids(1, 8))
    assert max(float(off.abs().max()) for off in seen) < 1e-5, "the first axis is not the stream"


@pytest.mark.parametrize("function", [written, read])
def test_another_model_is_refused(function):
    with pytest.raises(ValueError, match=r"^model: expected a GPT2LMHeadModel, got a GPT2Model$"):
        function(twin().transformer)


# random weights

BERT = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=64)


def test_untrained_models_are_fixed_by_the_seed():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = untrained(BERT, 3), untrained(BERT, 3), untrained(BERT, 4)
    assert torch.equal(torch.get_rng_state(), before), "the global generator moved"
    assert isinstance(first, BertModel) and not first.training and first.dtype == torch.float32
    for p, q in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(first.embeddings.word_embeddings.weight, other.embeddings.word_embeddings.weight)


def test_untrained_models_are_those_of_transformers():
    model = untrained(BERT, 3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = BertModel(BERT)
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(p, q), "other weights than the seed gives"


def test_every_parameter_is_shaken_by_about_that_much():
    model, start = shaken(twin(), 0.3, 5), dict(twin().named_parameters())
    for name, p in model.named_parameters():
        moved = p.detach() - start[name].detach()
        assert 0.15 < float(moved.square().mean().sqrt()) < 0.6, f"{name} moved by {moved.square().mean().sqrt():.2f}"
    assert model.lm_head.weight is model.transformer.wte.weight, "a shared parameter must move once"


def test_models_of_the_same_shapes_are_shaken_alike():
    moved = []
    for dtype in (torch.float32, torch.float64):
        model = twin(1).to(dtype)
        start = [p.detach().double().clone() for p in model.parameters()]
        shaken(model, 0.3, 5)
        moved.append([p.detach().double() - s for p, s in zip(model.parameters(), start, strict=True)])
    for a, b in zip(*moved, strict=True):
        assert float((a - b).abs().max()) < 1e-5, "the draw depends on the dtype"
    other = shaken(twin(1), 0.3, 6)
    assert not torch.equal(other.transformer.wpe.weight, shaken(twin(1), 0.3, 5).transformer.wpe.weight)


def test_nothing_to_shake_by():
    with pytest.raises(ValueError, match=r"^size: expected a positive number, got 0"):
        shaken(twin(), 0.0, 0)
