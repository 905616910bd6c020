"""What a survey of a large model asks for: sizes counted by hand."""

import pytest
import torch
from normgeom_lab.inference import SEVEN, survey_cost
from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel

SMALL = {
    "gpt2": (GPT2Model, GPT2Config(vocab_size=50, n_positions=10, n_embd=8, n_layer=2, n_head=2), 5),
    "llama": (
        LlamaModel,
        LlamaConfig(vocab_size=50, hidden_size=8, intermediate_size=20, num_hidden_layers=3, num_attention_heads=2),
        7,
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_against_a_model_that_is_made(name):
    make, config, norms = SMALL[name]
    model = make(config)
    weights = sum(p.numel() for p in model.parameters())
    outside = weights - sum(
        p.numel() for key, p in model.named_parameters() if "wte" in key or "wpe" in key or "embed" in key
    )
    found = survey_cost(config)
    assert (found["d"], found["norms"]) == (8, norms), "two norms a block and a last one"
    assert found["weights / GB"] == pytest.approx(2 * weights / 1e9), "two bytes a weight"
    assert found["work / 10¹⁵ operations"] == pytest.approx(2 * outside * 1e6 / 1e15), "embeddings do no work"
    seconds = 2 * outside * 1e6 / 50e12
    assert found["time / minutes"] == pytest.approx(seconds / 60)
    assert found["stored / TB"] == pytest.approx(norms * 2 * 8 * 2 * 1e6 / 1e12), "input and output, two bytes each"


@pytest.mark.parametrize(
    ("name", "width", "blocks", "billions"),
    [
        ("openai-community/gpt2-xl", 1600, 48, 1.56),
        ("EleutherAI/gpt-neo-1.3B", 2048, 24, 1.32),
        ("EleutherAI/pythia-1.4b", 2048, 24, 1.31),
        ("EleutherAI/gpt-j-6b", 4096, 28, 5.84),
        ("EleutherAI/pythia-6.9b", 4096, 32, 6.65),
        ("meta-llama/Llama-2-7b-hf", 4096, 32, 6.61),
        ("meta-llama/Meta-Llama-3-8B", 4096, 32, 7.50),
    ],
)
def test_the_seven_have_the_sizes_that_their_names_promise(name, width, blocks, billions):
    """Parameters as published, less the head's where it is a matrix of its own."""
    found = survey_cost(SEVEN[name]())
    a_block = 1 if "gpt-j" in name else 2  # GPT-J has one norm a block
    assert (found["d"], found["norms"]) == (width, a_block * blocks + 1)
    assert found["weights / GB"] / 2 == pytest.approx(billions, rel=0.005)


def test_no_weight_is_made():
    before = torch.get_rng_state()
    survey_cost(SEVEN["openai-community/gpt2-xl"]())
    assert torch.equal(torch.get_rng_state(), before), "weights were drawn"
