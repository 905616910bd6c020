"""Random weights that a seed decides."""

import normgeom as ng
import torch
from normgeom.models.gpt2 import gpt2
from normgeom_lab.common.tiny import shaken, untrained
from transformers import BertConfig, BertModel

CONFIG = gpt2(vocabulary=64, length=16, width=12, layers=2, heads=3)
BERT = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=64)


def twin(which=0):
    return ng.twins(CONFIG, 3)[which]


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
