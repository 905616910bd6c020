"""Plain architectures: OLMo is Llama without its means; what only nearly fits is not taken."""

import normgeom as ng
import pytest
import torch
from normgeom.surgery.double import double_throughout
from normgeom.surgery.plain import as_plain, is_plain
from surgery_models import IDS, uneven
from transformers import AutoModelForCausalLM, LlamaForCausalLM, LlamaModel


@pytest.mark.parametrize("changes", [{}, dict(attention_bias=True), dict(tie_word_embeddings=True)], ids=str)
def test_olmo_is_llama(changes):
    original, converted = uneven("olmo", **changes), ng.to_rms_norm(uneven("olmo", **changes))
    plain = as_plain(converted)
    assert isinstance(plain, LlamaForCausalLM) and not plain.training
    assert is_plain(plain) and not is_plain(converted)
    with double_throughout(), torch.no_grad():
        before, after = original(IDS).logits, plain(IDS).logits
    assert before.abs().max() > 0.3 and float((before - after).abs().max()) <= 1e-10


def test_a_model_in_bfloat16_as_it_is_loaded(tmp_path):
    uneven("olmo", dtype=torch.float32).save_pretrained(tmp_path)
    plain = as_plain(ng.to_rms_norm(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)))
    assert isinstance(plain, LlamaForCausalLM) and plain.dtype == torch.bfloat16


def test_a_model_that_clips_is_not():
    assert as_plain(ng.to_rms_norm(uneven("olmo", clip_qkv=8.0))) is None


@pytest.mark.parametrize("family", ["starcoder2", "cohere", "stablelm", "gpt2", "phi"])
def test_near_misses_are_not(family):
    assert as_plain(ng.to_rms_norm(uneven(family))) is None


def test_what_computes_something_else_is_not(monkeypatch):
    forward = LlamaModel.forward

    def odd(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        output.last_hidden_state *= 1 + 1e-6
        return output

    converted = ng.to_rms_norm(uneven("olmo"))
    monkeypatch.setattr(LlamaModel, "forward", odd)
    assert as_plain(converted) is None, "logits that differ by a millionth"
