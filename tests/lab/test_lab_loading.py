"""Models and texts of the chapters, by their names."""

import pytest
import torch
from normgeom.models.twins import twin
from normgeom.text.corpora import load_corpus
from normgeom_lab.common.loading import load_with_windows
from transformers import GPT2Config

OWN = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=256, n_positions=32, bos_token_id=None, eos_token_id=None)


def test_a_model_with_its_head_and_windows_of_a_text(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("the quick brown fox " * 10)
    model = twin(OWN, 3, "layer").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    with pytest.warns(UserWarning, match="has no tokenizer"):
        loaded, ids = load_with_windows(str(tmp_path / "model"), load_corpus(words), tokens=100, length=128)
    assert not loaded.training
    assert loaded.dtype == torch.float32, "as it was saved"
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.float()), "another head"
    expected = torch.tensor(list(words.read_bytes()[:96])).reshape(3, 32)
    assert torch.equal(ids, expected), "three windows of as many tokens as the model has positions"
    with pytest.warns(UserWarning):
        body, ids = load_with_windows(str(tmp_path / "model"), load_corpus(words), 100, 20, head=False)
    assert ids.shape == (5, 20) and torch.equal(body.wte.weight, loaded.transformer.wte.weight)
    (tmp_path / "short.txt").write_text("short")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"^tokens: expected at least one window of 32"):
        load_with_windows(str(tmp_path / "model"), load_corpus(tmp_path / "short.txt"), 100, 32)
