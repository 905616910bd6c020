"""Reading: token ids as a model reads them, and windows of them."""

import contextlib
import json
from pathlib import Path

import huggingface_hub
import pytest
import torch
from normgeom.text.corpora import Corpus, load_corpus
from normgeom.text.tokens import (
    BYTES,
    byte_tokens,
    first_windows,
    load_tokenizer,
    token_ids,
    windows,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import GPT2Config, PreTrainedTokenizerFast, ViTConfig


@pytest.fixture
def words(tmp_path):
    """The folder of a tokenizer."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "hidden": 1, "vectors": 2, "[END]": 300}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 300)])
    folder = tmp_path / "words"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[END]").save_pretrained(folder)
    return folder


def of(*texts, between="\n\n"):
    return Corpus(lambda: iter(texts), between, dict(name="test"))


# tokens


@pytest.mark.parametrize("text", ["", "plain", "γ⊙n+β — 90°", "𝟏 and\ttabs\nand lines"])
def test_bytes_there_and_back(text):
    ids = byte_tokens(text)
    assert ids.dtype == torch.int64 and ids.tolist() == list(text.encode())
    assert bytes(ids.tolist()).decode() == text


def test_a_tokenizer(words, tmp_path):
    encoder = load_tokenizer(str(words))
    assert encoder.encode("vectors hidden vectors here").tolist() == [2, 1, 2, 0], "nothing added at either end"
    assert encoder.encode("").dtype == torch.int64
    assert encoder.name == "words", "no folder of this machine"
    assert encoder.vocabulary == 301, "the largest id counts: a training would take ids that it has no rows for"
    encoder.save(tmp_path / "again")
    assert load_tokenizer(str(tmp_path / "again")).encode("hidden").tolist() == [1]


def test_bytes_by_name_and_for_a_model_without_a_tokenizer(tmp_path):
    """transformers makes a tokenizer that knows no words of a GPT-2's configuration: every text would be empty."""
    assert load_tokenizer("bytes") is BYTES
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="gpt2", vocab_size=256)))
    with pytest.warns(UserWarning, match="has no tokenizer: the bytes of the text are its token ids"):
        assert load_tokenizer(str(tmp_path), GPT2Config(vocab_size=256)) is BYTES
    for config in (None, GPT2Config(vocab_size=255), GPT2Config(vocab_size=1000), ViTConfig()):
        with pytest.raises(OSError, match=r"^tokenizer: '.*' has no usable one \(.+\); 'bytes' needs none$"):
            load_tokenizer(str(tmp_path), config)


@pytest.mark.parametrize("left", [0, 60, -1], ids=["empty", "half", "gone"])
def test_a_tokenizer_that_cannot_be_read_is_not_replaced_by_bytes(words, left):
    path = Path(words) / "tokenizer.json"
    if left < 0:
        path.unlink()  # tokenizer_config.json says that there was one
    else:
        path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(OSError, match=r"(?s)^tokenizer: '.*' has no usable one \(.*\); 'bytes' needs none$"):
        load_tokenizer(str(words), GPT2Config(vocab_size=256))


def test_a_tokenizer_out_of_reach(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"^tokenizer: 'nobody/nothing' has no usable one"):
        load_tokenizer("nobody/nothing", GPT2Config(vocab_size=256))


def test_a_tokenizer_s_own_code_is_not_run(words, tmp_path):
    path = words / "tokenizer_config.json"
    own = dict(tokenizer_class="Own", auto_map={"AutoTokenizer": ["x.Own", None]})
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    (words / "x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with contextlib.suppress(OSError):
        load_tokenizer(str(words))
    assert not (tmp_path / "ran").exists()


# windows


def test_a_stream_of_tokens_is_the_text():
    stdlib = load_corpus()
    ids = byte_tokens(stdlib.text)
    assert torch.equal(token_ids(stdlib, BYTES, len(ids)), ids), "a token is lost or doubled"


@pytest.mark.parametrize("tokens", [9, 24, 25, 1000])
@pytest.mark.parametrize("cut", [1, 2, 5, 30])
def test_windows_do_not_depend_on_where_pieces_end(tokens, cut):
    text = "abcdefghijklmnopqrstuvwxyz0123456789"
    corpus = of(*(text[i : i + cut] for i in range(0, len(text), cut)), between="")
    got, expected = first_windows(corpus, BYTES, tokens, 4, 3), windows(byte_tokens(text)[:tokens], 4, 3)
    assert [batch.tolist() for batch in got] == [batch.tolist() for batch in expected]


def test_documents_are_joined_by_a_blank_line():
    (batch,) = first_windows(of("ab", "c"), BYTES, 5, length=5, batch_size=1)
    assert bytes(batch[0].tolist()) == b"ab\n\nc"


def test_a_corpus_is_read_no_further_than_asked():
    read = []
    texts = (read.append(i) or "x" * 100 for i in range(100))
    ids = token_ids(Corpus(lambda: texts, "", dict(name="long")), BYTES, 150)
    assert len(ids) == 150 and read == [0, 1]


@pytest.mark.parametrize(("count", "shapes"), [(23, [(3, 5), (1, 5)]), (15, [(3, 5)]), (5, [(1, 5)])])
def test_windows_share_no_token(count, shapes):
    got = windows(torch.arange(count), length=5, batch_size=3)
    assert [tuple(batch.shape) for batch in got] == shapes
    assert torch.cat(got).flatten().tolist() == list(range(count // 5 * 5)), "in order, the rest left out"


@pytest.mark.parametrize("texts", [[], ["abcd"]])
def test_a_text_shorter_than_a_window(texts):
    with pytest.raises(ValueError, match=rf"^tokens: expected at least one window of 5, got {len(texts) * 4}"):
        first_windows(of(*texts), BYTES, 100, length=5, batch_size=2)
