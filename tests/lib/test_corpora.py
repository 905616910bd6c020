"""Corpora: where a text comes from, and how it is cut."""

import hashlib
import platform

import pytest
import torch
from normgeom.measure import corpora
from normgeom.measure.corpora import byte_tokens, load_corpus, model_tokens, random_windows, windows
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def stdlib():
    return load_corpus()


def test_the_offline_corpus_is_real_text(stdlib):
    assert len(stdlib.text) > 500_000
    for phrase in ("statement", "Return", "expression"):
        assert stdlib.text.count(phrase) > 20, f"{phrase!r} is rare: not the documentation?"


def test_provenance_of_the_offline_corpus(stdlib):
    assert stdlib.provenance == dict(
        name="stdlib",
        sha256=hashlib.sha256(stdlib.text.encode()).hexdigest(),
        characters=len(stdlib.text),
        python=platform.python_version(),
    )


def test_the_offline_corpus_is_the_same_each_time(stdlib):
    corpora._stdlib_text.cache_clear()
    assert load_corpus("stdlib") == stdlib


@pytest.mark.parametrize("as_text", [True, False])
def test_a_text_file(tmp_path, as_text):
    path = tmp_path / "poem.txt"
    path.write_text("γ ⊙ n + β\nsecond line\n", encoding="utf-8")
    corpus = load_corpus(str(path) if as_text else path)
    assert corpus.text == "γ ⊙ n + β\nsecond line\n"
    assert corpus.provenance == dict(
        name="poem.txt", sha256=hashlib.sha256(path.read_bytes()).hexdigest(), characters=len(corpus.text)
    ), "provenance must not carry the folder, nor Python's version"


@pytest.mark.parametrize("name", ["nowhere.txt", "wikitext"])
def test_an_unknown_corpus_is_named(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"^corpus: expected 'stdlib' \(needs no network\).*got '{name}'"):
        load_corpus(name)


def test_a_folder_is_not_a_text(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^corpus: expected 'stdlib'"):
        load_corpus(tmp_path)


@pytest.mark.parametrize("text", ["plain", "γ⊙n+β — 90°", "𝟏 and\ttabs\nand lines"])
def test_bytes_there_and_back(text):
    ids = byte_tokens(text)
    assert ids.dtype == torch.int64
    assert ids.tolist() == list(text.encode())
    assert bytes(ids.tolist()).decode() == text


def test_no_bytes():
    assert byte_tokens("").shape == (0,)


def test_a_model_without_tokenizer_reads_bytes(tmp_path):
    assert torch.equal(model_tokens("γ⊙n", str(tmp_path), 256), byte_tokens("γ⊙n"))
    with pytest.raises(ValueError, match=r"^model: .* has no tokenizer, and byte tokens need 256 ids; it has 255"):
        model_tokens("γ⊙n", str(tmp_path), 255)


def test_a_model_with_a_tokenizer_reads_its_tokens(tmp_path):
    words = Tokenizer(WordLevel({"[UNK]": 0, "hidden": 1, "vectors": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path)
    ids = model_tokens("vectors hidden vectors here", str(tmp_path), 3)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [2, 1, 2, 0], "its own ids, nothing added at either end"


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
