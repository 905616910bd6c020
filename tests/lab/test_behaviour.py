"""Questions to a block: asked of blocks whose placement is known, and of transformers' own with a norm taken out."""

import pytest
import torch
from norm_checks import close, draw, rounding
from normgeom_lab.placement import FAMILIES, behaviour, run_block, tiny_model
from torch import nn


@pytest.mark.parametrize("family", ["Llama", "BERT"])
def test_silent_branches_leave_the_stream(family):
    """Llama's block without its branches is the identity; BERT's is two LayerNorms, of ε = 1e-12."""
    model, blocks = tiny_model(family, 0)
    x = 3 * draw(2, 7, 32)
    out, _, _, final = run_block(model, blocks[1], FAMILIES[family].writers, x, (0, 0))
    truth = x
    if family == "BERT":
        for _ in range(2):
            truth = nn.functional.layer_norm(truth, (32,), eps=1e-12)
    close(out, truth, 4 * rounding(truth, torch.float64), "output", "Factors on other maps? The stream not put in?")
    same = float((final - out).abs().max()) < 1e-12
    assert same == (family == "BERT"), "only Llama has a final norm"


def test_factors_are_of_attention_and_mlp_in_this_order():
    model, blocks = tiny_model("GPT-2", 0)
    x = 3 * draw(2, 7, 32)
    run = lambda *factors: run_block(model, blocks[1], FAMILIES["GPT-2"].writers, x, factors)  # noqa: E731
    out, attention, mlp, _ = run(1, 1)
    assert torch.allclose(out, x + attention + mlp, atol=1e-12), "what was computed is not what was added"
    half, same, other, _ = run(0.5, 0)
    assert torch.allclose(half, x + 0.5 * attention, atol=1e-12), "factors exchanged?"
    assert torch.equal(same, attention), "what attention computed, before its factor"
    assert not torch.allclose(other, mlp), "the MLP reads attention's result"
    again = run(1, 1)
    assert torch.equal(again[0], out), "hooks left behind"


def test_answers_of_known_blocks():
    llama, bert, gpt_j = (behaviour(name, 0) for name in ("Llama", "BERT", "GPT-J"))
    small = 0.02
    assert llama.before < small < min(llama.sum, llama.after, llama.parallel, llama.final_norm), "Llama is pre-norm"
    assert max(bert.sum, bert.final_norm) < small < min(bert.before, bert.after, bert.parallel), "BERT is post-norm"
    assert max(gpt_j.before, gpt_j.parallel) < small < min(gpt_j.sum, gpt_j.after), "GPT-J's branches are parallel"
    assert (llama.block, llama.file) == ("LlamaDecoderLayer", "modeling_llama.py")


@pytest.mark.parametrize("names", [("input_layernorm", "before"), ("post_feedforward_layernorm", "after")])
def test_a_block_without_one_norm_answers_no(names):
    """Either branch's norm: the larger change of both counts."""
    norm, question = names
    assert getattr(behaviour("Gemma 2", 0), question) < 0.02 < getattr(behaviour("Gemma 2", 0, norm), question)


def test_the_seed_decides():
    first, other = behaviour("OPT", 0), behaviour("OPT", 1)
    assert behaviour("OPT", 0) == first and other.parallel != first.parallel


def test_matrices_have_rows_of_length_one():
    _, blocks = tiny_model("Llama", 0)
    squares = torch.cat([p.detach().square().sum(-1) for p in blocks.parameters() if p.dim() == 2])
    assert float(squares.mean()) == pytest.approx(1.0, abs=0.05), "The library's own small initialisation?"
    assert next(blocks.parameters()).dtype == torch.float64


def test_refusals():
    with pytest.raises(ValueError, match=r"family: expected one of 'GPT-2', .*, got 'GPT-9'"):
        behaviour("GPT-9", 0)
    with pytest.raises(ValueError, match="without: expected a module of LlamaDecoderLayer, got 'norm_9'"):
        behaviour("Llama", 0, without="norm_9")
