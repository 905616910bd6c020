"""Reading: token ids as a model reads them, and windows of them."""

import contextlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest
import torch
from normgeom.text.corpora import Corpus, load_corpus
from normgeom.text.tokens import BYTES, TokenBatches, byte_tokens, load_tokenizer, random_windows, windows
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
    assert encoder.encode("").dtype == encoder.end.dtype == torch.int64
    assert encoder.end.tolist() == [300] and encoder.name == "words", "no folder of this machine"
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


# windows of a stream


def test_a_stream_of_windows_is_the_text():
    stdlib = load_corpus()
    ids = byte_tokens(stdlib.text)
    batches = TokenBatches(stdlib, BYTES, len(ids), length=100, batch_size=7)
    assert len(list(batches)) == len(batches)
    assert all(map(torch.equal, batches, windows(ids, 100, 7))), "a token is lost, doubled or of another document"


@pytest.mark.parametrize(
    ("tokens", "length", "batch_size"), [(24, 4, 3), (23, 4, 3), (25, 5, 1), (9, 9, 4), (10, 3, 100), (16, 4, 2)]
)
@pytest.mark.parametrize("cut", [1, 2, 5, 30])
def test_windows_do_not_depend_on_where_pieces_end(tokens, length, batch_size, cut):
    text = "abcdefghijklmnopqrstuvwxyz0123456789"
    corpus = of(*(text[i : i + cut] for i in range(0, len(text), cut)), between="")
    batches = TokenBatches(corpus, BYTES, tokens, length, batch_size)
    got, expected = list(batches), windows(byte_tokens(text)[:tokens], length, batch_size)
    assert [batch.tolist() for batch in got] == [batch.tolist() for batch in expected]
    assert len(batches) == len(got), "the bar would not end where the survey ends"


@pytest.mark.parametrize(
    ("between", "expected"), [("\n\n", [[1, 2, 300], [1, 300, 2]]), ("", [[1, 2, 1]])], ids=["documents", "a file"]
)
def test_documents_are_joined_by_the_end_of_text(words, between, expected):
    corpus = of("hidden vectors", "hidden", "vectors", between=between)
    (batch,) = TokenBatches(corpus, load_tokenizer(str(words)), 6, length=3, batch_size=2)
    assert batch.tolist() == expected


def test_without_an_end_of_text_documents_are_joined_by_a_blank_line():
    (batch,) = TokenBatches(of("ab", "c"), BYTES, 5, length=5, batch_size=1)
    assert bytes(batch[0].tolist()) == b"ab\n\nc"


@pytest.mark.parametrize("processes", [1, 3, 8])
def test_shares_together_are_what_one_process_sees(processes):
    batches = TokenBatches(of(*(f"document {i}" for i in range(12))), BYTES, 120, length=5, batch_size=4)
    shares = [replace(batches, rank=rank, of=processes) for rank in range(processes)]
    got = [list(share) for share in shares]
    assert [len(share) for share in shares] == [len(of_share) for of_share in got], "len() is not the share's"
    for k, batch in enumerate(batches):
        assert torch.equal(got[k % processes][k // processes], batch), f"batch {k} is not in share {k} mod {processes}"


def test_a_corpus_that_ends_early_says_so():
    batches = TokenBatches(of("a" * 47), BYTES, 1000, length=10, batch_size=3)
    assert [tuple(batch.shape) for batch in batches] == [(3, 10), (1, 10)]
    assert list(TokenBatches(of("short"), BYTES, 1000, length=10, batch_size=3)) == []


def test_a_corpus_is_read_no_further_than_asked():
    read = []
    texts = (read.append(i) or "x" * 100 for i in range(100))
    batches = TokenBatches(Corpus(lambda: texts, "", dict(name="long")), BYTES, 200, 10, 8)
    first = next(iter(batches))
    assert first.shape == (8, 10) and len(read) == 1, "the first batch needs the first document"
    texts = (read.append(i) or "x" * 100 for i in range(100))
    assert sum(batch.numel() for batch in batches) == 200 and len(read) == 3, "more was read than the tokens of two"


# windows of tokens in memory


@pytest.mark.parametrize(("count", "shapes"), [(23, [(3, 5), (1, 5)]), (15, [(3, 5)]), (5, [(1, 5)])])
def test_windows_share_no_token(count, shapes):
    got = windows(torch.arange(count), length=5, batch_size=3)
    assert [tuple(batch.shape) for batch in got] == shapes
    assert torch.cat(got).flatten().tolist() == list(range(count // 5 * 5)), "in order, the rest left out"


def test_a_text_shorter_than_a_window():
    for cut in (windows, partial(random_windows, seed=0), lambda ids, **of: TokenBatches(None, BYTES, len(ids), **of)):
        with pytest.raises(ValueError, match=r"^tokens: expected at least one window of 5, got 4"):
            cut(torch.arange(4), length=5, batch_size=2)


def test_random_windows_are_pieces_of_the_text():
    stream, starts = random_windows(torch.arange(100, 150), length=6, batch_size=4, seed=0), set()
    for _ in range(200):
        batch = next(stream)
        assert batch.shape == (4, 6)
        assert torch.equal(batch - batch[:, :1], torch.arange(6).expand(4, 6)), "consecutive tokens"
        starts.update(batch[:, 0].tolist())
    assert starts == set(range(100, 145)), "each place is drawn, the last included"


def test_random_windows_are_fixed_by_their_seed():
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(drawn))  # the global generator plays no part
        stream = random_windows(torch.arange(1000), 8, 4, seed)
        drawn.append(torch.stack([next(stream) for _ in range(3)]))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0][0], drawn[0][1]), "each batch is new"
