"""Small models in folders, and a folder that takes the records."""

import sys
from pathlib import Path

import pytest
import torch
from normgeom import records
from normgeom_lab.common import recording
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the programs stand beside the library, not in it
WORDS = ["the", "norm", "of", "a", "vector", "is", "its", "length"]


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    """A folder with a BERT of 16 features and random gains, and a tokenizer of eight words."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=9, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=32,
        ),
        add_pooling_layer=False,
    )  # fmt: skip
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(["[UNK]", *WORDS])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(WORDS[i * i % len(WORDS)] for i in range(400)), "utf-8")
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where records go and come from during a test."""
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(recording.record, "__defaults__", (tmp_path,))
    return tmp_path
