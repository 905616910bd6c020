"""Reading: token ids as a model reads them, and windows of them."""

import contextlib
import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest
import torch
from normgeom.text import tokens
from normgeom.text.corpora import Corpus, load_corpus
from normgeom.text.tokens import (
    BYTES,
    Encoder,
    TokenBatches,
    byte_tokens,
    load_encoder,
    load_tokenizer,
    random_windows,
    windows,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def stdlib():
    return load_corpus()


@pytest.fixture
def tokenizer_folder(tmp_path):
    words = Tokenizer(WordLevel({"[UNK]": 0, "hidden": 1, "vectors": 2, "[END]": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 3)])
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", eos_token="[END]").save_pretrained(tmp_path)
    return str(tmp_path)


def of(*texts, between="\n\n"):
    return Corpus(lambda: iter(texts), between, dict(name="test"))


# where a text comes from


@pytest.mark.parametrize("text", ["plain", "γ⊙n+β — 90°", "𝟏 and\ttabs\nand lines"])
def test_bytes_there_and_back(text):
    ids = byte_tokens(text)
    assert ids.dtype == torch.int64
    assert ids.tolist() == list(text.encode())
    assert bytes(ids.tolist()).decode() == text


def test_no_bytes():
    assert byte_tokens("").shape == (0,)


def test_a_model_without_tokenizer_reads_bytes(tmp_path):
    with pytest.warns(UserWarning, match="has no tokenizer: the bytes of the text are its token ids"):
        assert torch.equal(load_encoder(str(tmp_path), 256).encode(["γ⊙n"])[0], byte_tokens("γ⊙n"))
    assert load_encoder(str(tmp_path), 50257, tokenizer="bytes").name == "bytes", "asked for"


@pytest.mark.parametrize("ids", [255, 1000])
def test_bytes_are_not_guessed_where_the_vocabulary_does_not_fit(tmp_path, ids):
    with pytest.raises(ValueError, match=rf"^model: .* has no tokenizer, and its {ids} token ids are not bytes"):
        load_encoder(str(tmp_path), ids)
    with pytest.raises(ValueError, match=r"^tokenizer: 'bytes' needs 256 ids, the model takes 255"):
        load_encoder(str(tmp_path), 255, tokenizer="bytes")


@pytest.mark.parametrize("left", [0, 60, -1], ids=["empty", "half", "gone"])
def test_a_tokenizer_that_is_there_and_cannot_be_read_is_an_error(tokenizer_folder, left):
    """Not bytes in its place, also where the vocabulary would fit."""
    path = Path(tokenizer_folder) / "tokenizer.json"
    if left < 0:
        path.unlink()  # tokenizer_config.json says that there was one
    else:
        path.write_bytes(path.read_bytes()[:left])
    for take in (partial(load_encoder, vocabulary=256), load_tokenizer):
        with pytest.raises(OSError, match=r"^tokenizer: '.*' has no usable one \(.*\); name another, or 'bytes'$"):
            take(tokenizer_folder)


def test_a_tokenizer_s_own_code_is_not_run(tokenizer_folder, tmp_path):
    folder = Path(tokenizer_folder)
    path = folder / "tokenizer_config.json"
    own = dict(tokenizer_class="Own", auto_map={"AutoTokenizer": ["x.Own", None]})
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    (folder / "x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with contextlib.suppress(OSError):
        load_tokenizer(tokenizer_folder)
    assert not (tmp_path / "ran").exists()


def test_another_tokenizer_than_the_model_s(tokenizer_folder, tmp_path):
    (tmp_path / "model").mkdir()
    encoder = load_encoder(str(tmp_path / "model"), 4, tokenizer=tokenizer_folder)
    assert encoder.encode(["hidden vectors"])[0].tolist() == [1, 2]


def test_ids_that_the_model_does_not_take(tokenizer_folder):
    encoder = load_encoder(tokenizer_folder, 2)
    assert encoder.encode(["hidden", ""])[0].tolist() == [1]
    with pytest.raises(ValueError, match=r"^tokenizer: expected ids from 0 to 1, .* got 2 from .* another model's"):
        encoder.encode(["hidden", "vectors"])


def test_a_vocabulary_with_holes_counts_to_its_largest_id(tmp_path):
    words = Tokenizer(WordLevel({"[UNK]": 0, "hidden": 300}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).vocabulary == 301, "a training would take ids that it has no rows for"


def test_a_saved_model_without_tokenizer_reads_bytes(tmp_path):
    """transformers makes it a tokenizer that knows no words: every text would be empty."""
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="gpt2", vocab_size=256)))
    with pytest.warns(UserWarning, match="has no tokenizer"):
        assert load_encoder(str(tmp_path), 256) is BYTES


def test_a_model_with_a_tokenizer_reads_its_tokens(tokenizer_folder):
    ids = load_encoder(tokenizer_folder, 4).encode(["vectors hidden vectors here"])[0]
    assert ids.dtype == torch.int64
    assert ids.tolist() == [2, 1, 2, 0], "its own ids, nothing added at either end"


def test_an_encoder_names_its_end_of_text(tokenizer_folder):
    encoder = load_encoder(tokenizer_folder, 4)
    assert encoder.end == ("[END]", 3)
    assert encoder.name.startswith("Pre") or "Tokenizer" in encoder.name
    assert [ids.tolist() for ids in encoder.encode(["hidden", "", "vectors hidden"])] == [[1], [], [2, 1]]


def test_a_tokenizer_out_of_reach(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"^tokenizer: 'nobody/nothing' has no usable one"):
        load_encoder("nobody/nothing", 256)


# windows of a stream


def test_a_stream_of_windows_is_the_text(stdlib):
    """Of bytes: the windows of the whole text held in memory."""
    ids = byte_tokens(stdlib.text)
    batches = TokenBatches(stdlib, BYTES, len(ids), length=100, batch_size=7)
    expected = windows(ids, 100, 7)
    got = list(batches)
    assert len(got) == len(batches) == len(expected)
    for k, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        assert torch.equal(mine, theirs), f"batch {k}: a token is lost, doubled or of another document"
    assert batches.had == len(ids) // 100 * 100


@pytest.mark.parametrize(
    ("tokens", "length", "batch_size"), [(24, 4, 3), (23, 4, 3), (25, 5, 1), (9, 9, 4), (10, 3, 100), (16, 4, 2)]
)
@pytest.mark.parametrize("cut", [1, 2, 5, 30])
def test_windows_do_not_depend_on_where_documents_end(tokens, length, batch_size, cut):
    text = "abcdefghijklmnopqrstuvwxyz0123456789"
    corpus = of(*(text[i : i + cut] for i in range(0, len(text), cut)), between="")
    batches = TokenBatches(corpus, BYTES, tokens, length, batch_size)
    expected = windows(byte_tokens(text)[:tokens], length, batch_size)
    got = list(batches)
    assert [batch.tolist() for batch in got] == [batch.tolist() for batch in expected]
    assert len(batches) == len(got), "the bar would not end where the survey ends"
    assert batches.had == tokens // length * length


def test_documents_are_joined_by_the_end_of_text(tokenizer_folder):
    corpus = of("hidden vectors", "hidden", "vectors")
    batches = TokenBatches(corpus, load_encoder(tokenizer_folder, 4), 6, length=6, batch_size=1)
    assert next(iter(batches)).tolist() == [[1, 2, 3, 1, 3, 2]], "one end-of-text between two documents, none elsewhere"
    assert batches.provenance["between_documents"] == "[END]"


def test_without_an_end_of_text_documents_are_joined_by_a_blank_line():
    batches = TokenBatches(of("ab", "c"), BYTES, 5, length=5, batch_size=1)
    assert bytes(next(iter(batches))[0].tolist()) == b"ab\n\nc"
    assert batches.provenance["between_documents"] == "\n\n"


def test_pieces_of_a_file_follow_each_other(tokenizer_folder):
    encoder = load_encoder(tokenizer_folder, 4)
    batches = TokenBatches(of("hidden\n", "vectors\n", between=""), encoder, 2, length=2, batch_size=1)
    assert next(iter(batches)).tolist() == [[1, 2]], "a file is one document: no end-of-text inside"
    assert batches.provenance["between_documents"] == ""


def test_how_windows_were_made_is_noted():
    batches = TokenBatches(of("abc"), BYTES, 1000, length=20, batch_size=4)
    noted = batches.provenance
    assert {key: noted[key] for key in ("tokenizer", "length", "batch_size", "asked", "other_special_tokens")} == dict(
        tokenizer="bytes", length=20, batch_size=4, asked=1000, other_special_tokens="none"
    )
    assert replace(batches, rank=1, of=2).provenance == noted, "a share is of the same windows"


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 8])
def test_shares_together_are_what_one_process_sees(processes):
    corpus = of(*(f"document {i}" for i in range(12)))
    whole = list(TokenBatches(corpus, BYTES, 120, length=5, batch_size=4))
    shares = [TokenBatches(corpus, BYTES, 120, 5, 4, rank, processes) for rank in range(processes)]
    got = [list(share) for share in shares]
    assert [len(share) for share in shares] == [len(batches) for batches in got], "len() is not the share's"
    for k, batch in enumerate(whole):
        assert torch.equal(got[k % processes][k // processes], batch), f"batch {k} is not in share {k} mod {processes}"
    assert sum(map(len, got)) == len(whole)
    assert {share.had for share in shares} == {120}, "each process knows how much all had"


def test_a_corpus_that_ends_early_says_so():
    batches = TokenBatches(of("a" * 47), BYTES, 1000, length=10, batch_size=3)
    assert batches.had is None, "nothing is claimed before it was read"
    assert [tuple(batch.shape) for batch in batches] == [(3, 10), (1, 10)]
    assert batches.had == 40, "whole windows only"


def test_a_corpus_is_read_no_further_than_asked():
    read = []

    def texts():
        for i in range(100):
            read.append(i)
            yield "x" * tokens._GROUP

    batches = TokenBatches(Corpus(texts, "", dict(name="long")), BYTES, 2 * tokens._GROUP, 2**10, 8)
    assert sum(batch.numel() for batch in batches) == 2 * tokens._GROUP
    assert len(read) <= 3, f"{len(read)} documents were read for the tokens of 2"
    assert len(list(itertools.islice(batches, 3))) == 3 and len(read) <= 6, "the first batches need the first document"


def test_short_documents_are_tokenised_together_and_long_ones_apart(monkeypatch):
    monkeypatch.setattr(tokens, "_GROUP", 100)
    sizes = []

    def encode(texts):
        sizes.append([len(text) for text in texts])
        return BYTES.encode(texts)

    corpus = of(*["x" * 30] * 8, "x" * 500, "x" * 7, between="")
    batches = list(TokenBatches(corpus, Encoder(encode, "counting", None, 10**6), 10**6, 10, 10))
    assert sizes == [[30] * 4, [30] * 4, [500], [7]]
    assert sum(batch.numel() for batch in batches) == 740


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(length=0), "^length: expected at least 1, got 0"),
        (dict(batch_size=0), "^batch_size: expected at least 1, got 0"),
        (dict(tokens=9), "^tokens: expected at least one window of 10, got 9"),
    ],
)
def test_impossible_windows(changes, message):
    with pytest.raises(ValueError, match=message):
        TokenBatches(**dict(corpus=of("abc"), encoder=BYTES, tokens=100, length=10, batch_size=2) | changes)


# windows of tokens in memory


def test_windows_share_no_token():
    got = windows(torch.arange(23), length=5, batch_size=3)
    assert [tuple(batch.shape) for batch in got] == [(3, 5), (1, 5)]
    assert torch.cat(got).flatten().tolist() == list(range(20)), "in order, each token once, the rest left out"


def test_one_exact_window():
    assert [batch.tolist() for batch in windows(torch.arange(4), 4, 8)] == [[[0, 1, 2, 3]]]


def test_a_text_shorter_than_a_window():
    with pytest.raises(ValueError, match=r"^tokens: expected at least one window of 5, got 4"):
        windows(torch.arange(4), 5, 2)
    with pytest.raises(ValueError, match=r"^tokens: expected at least one window of 5, got 4"):
        next(random_windows(torch.arange(4), 5, 2, seed=0))


def test_random_windows_are_pieces_of_the_text():
    stream = random_windows(torch.arange(100, 150), length=6, batch_size=4, seed=0)
    starts = set()
    for _ in range(200):
        batch = next(stream)
        assert batch.shape == (4, 6)
        assert torch.equal(batch - batch[:, :1], torch.arange(6).expand(4, 6)), "consecutive tokens"
        starts.update(batch[:, 0].tolist())
    assert starts == set(range(100, 145)), "each place is drawn, the last included"


def test_random_windows_are_fixed_by_their_seed():
    tokens = torch.arange(1000)
    first, again, other = (random_windows(tokens, 8, 4, seed=s) for s in (1, 1, 2))
    torch.manual_seed(5)
    a = [next(first) for _ in range(3)]
    torch.manual_seed(6)
    b, c = ([next(stream) for _ in range(3)] for stream in (again, other))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), "the global generator plays a part"
    assert not all(torch.equal(x, y) for x, y in zip(a, c, strict=True))
    assert not torch.equal(a[0], a[1]), "each batch is new"


def test_random_windows_of_the_whole_text():
    assert next(random_windows(torch.arange(5), 5, 2, seed=0)).tolist() == [list(range(5))] * 2
