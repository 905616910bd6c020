"""Corpora: where a text comes from, how it is read as a stream, and how it is cut."""

import argparse
import builtins
import hashlib
import inspect
import platform
import time

import datasets
import huggingface_hub
import pandas as pd
import pytest
from normgeom.text import corpora
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import (
    BYTES,
    TokenBatches,
)


@pytest.fixture(scope="module")
def stdlib():
    return load_corpus()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A "wikipedia" of three articles, in a folder instead of on the hub."""
    folder = tmp_path / "hub"
    folder.mkdir()
    texts = ["first article\nof two lines", "second", "γ ⊙ n"]
    pd.DataFrame(dict(title=["a", "b", "c"], text=texts)).to_parquet(folder / "train-00000-of-00001.parquet")
    source = dict(path=str(folder), name="default", revision=None)
    monkeypatch.setattr(corpora, "HUB", dict(wikipedia=source))
    return texts


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
    corpora._stdlib_documents.cache_clear()
    again = load_corpus("stdlib")
    assert again.text == stdlib.text and again.provenance == stdlib.provenance


def test_the_offline_corpus_has_documents_in_an_order_of_their_own(stdlib):
    documents = list(stdlib.texts())
    assert 100 < len(documents) < 1000 and all(documents), "topics and modules, none of them empty"
    assert documents == list(stdlib.texts()), "a second reading begins at the beginning"
    starts = 'The "assert" statement', "Command-line parsing library"
    topic, module = (next(text for text in documents if text.startswith(start)) for start in starts)
    word = "Object for parsing command line strings"
    assert word in module and word not in topic, "a topic is a document, all docstrings of a module another"
    assert inspect.cleandoc(argparse.__doc__) + "\n\n" in module, "a blank line parts docstrings, as it always did"


@pytest.mark.parametrize("as_text", [True, False])
def test_a_text_file(tmp_path, as_text):
    path = tmp_path / "poem.txt"
    path.write_text("γ ⊙ n + β\nsecond line\n", encoding="utf-8")
    corpus = load_corpus(str(path) if as_text else path)
    assert corpus.text == "γ ⊙ n + β\nsecond line\n"
    assert corpus.provenance == dict(
        name="poem.txt", sha256=hashlib.sha256(path.read_bytes()).hexdigest(), characters=len(corpus.text)
    ), "provenance must not carry the folder, nor Python's version"


def test_a_long_file_is_read_in_pieces_that_end_with_a_line(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("".join(f"line {i} — end\n" for i in range(40_000)), encoding="utf-8")
    corpus = load_corpus(path)
    pieces = list(corpus.texts())
    assert len(pieces) > 5 and max(map(len, pieces)) < 2 * corpora._PIECE, "read whole: memory grows with the file"
    assert "".join(pieces) == corpus.text == path.read_text("utf-8"), "characters are lost or doubled between pieces"
    assert all(piece.endswith(" end\n") for piece in pieces), "a line is cut"
    assert corpus.provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_of_one_long_line_is_read_in_pieces_too(tmp_path):
    path = tmp_path / "line.txt"
    path.write_text("word " * 100_000)
    pieces = list(load_corpus(path).texts())
    assert "".join(pieces) == path.read_text() and max(map(len, pieces)) <= 2 * corpora._PIECE


def test_an_empty_file(tmp_path):
    path = tmp_path / "empty.txt"
    path.touch()
    corpus = load_corpus(path)
    assert corpus.text == "" and corpus.provenance["characters"] == 0
    assert list(TokenBatches(corpus, BYTES, 10, 5, 2)) == []


def test_a_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("Größe".encode("latin-1"))
    with pytest.raises(ValueError, match=r"^corpus: expected latin.txt to be UTF-8 text, got .*0xf6"):
        load_corpus(path)


def test_text_in_utf16_without_a_mark_is_no_utf8_either(tmp_path):
    """Though every byte of it could be: letters, and NUL between them."""
    path = tmp_path / "wide.txt"
    path.write_bytes("hello".encode("utf-16-le"))
    with pytest.raises(ValueError, match=r"^corpus: expected wide.txt to be UTF-8 text, got NUL"):
        load_corpus(path)


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "marked.txt").write_text("γ", encoding="utf-8-sig")
    assert load_corpus(tmp_path / "marked.txt").text == "γ"


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("x")

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied", "text.txt")

    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(OSError, match=r"^corpus: .*text.txt cannot be read \(Permission denied\)$"):
        load_corpus(tmp_path / "text.txt")


@pytest.mark.parametrize("name", ["nowhere.txt", "wikitext"])
def test_an_unknown_corpus_is_named(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    known = r"'stdlib' \(needs no network\), 'wikipedia', 'openwebtext' or a text file"
    with pytest.raises(FileNotFoundError, match=rf"^corpus: expected {known}, got '{name}'"):
        load_corpus(name)


def test_a_folder_is_not_a_text(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^corpus: expected 'stdlib'"):
        load_corpus(tmp_path)


# on the hub


@pytest.mark.parametrize("name", ["wikipedia", "openwebtext"])
def test_hub_corpora_are_pinned_to_a_commit(name):
    source = corpora.HUB[name]
    assert set(source) == {"path", "name", "revision"}
    assert len(source["revision"]) == 40 and int(source["revision"], 16), "a branch moves, a commit does not"


def test_a_corpus_on_the_hub_is_streamed(hub, monkeypatch):
    asked = []
    load = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda **how: asked.append(how) or load(**how))
    corpus = load_corpus("wikipedia")
    assert asked == [dict(corpora.HUB["wikipedia"], split="train", streaming=True)], "all of it would be downloaded"
    assert list(corpus.texts()) == hub
    assert list(corpus.texts()) == hub, "a second reading begins at the beginning"
    assert corpus.between == "\n\n"


def test_provenance_of_a_corpus_on_the_hub(hub, monkeypatch):
    monkeypatch.setitem(corpora.HUB["wikipedia"], "revision", "abc")
    assert load_corpus("wikipedia").provenance == dict(
        name="wikipedia",
        dataset=corpora.HUB["wikipedia"]["path"],
        configuration="default",
        split="train",
        revision="abc",
    )


def test_a_corpus_on_the_hub_is_not_read_whole(hub):
    with pytest.raises(ValueError, match=r"^corpus: wikipedia is too large .* TokenBatches"):
        _ = load_corpus("wikipedia").text


@pytest.mark.parametrize("name", ["wikipedia", "openwebtext"])
def test_without_a_network_the_offline_corpus_is_named(name, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match=rf"^corpus: '{name}' cannot be .*/.*; 'stdlib' and text files need no"):
        load_corpus(name)


def test_a_connection_that_fails(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the hub's attempts
    with pytest.raises(ConnectionError, match=r"^corpus: 'wikipedia' .*wikimedia/wikipedia.*; 'stdlib' and text files"):
        load_corpus("wikipedia")


def test_a_connection_that_breaks(hub, monkeypatch):
    def rows():
        yield dict(text="one")
        raise TimeoutError("no answer")

    monkeypatch.setattr(datasets, "load_dataset", lambda **how: rows())
    texts = load_corpus("wikipedia").texts()
    assert next(texts) == "one"
    with pytest.raises(ConnectionError, match=r"^corpus: 'wikipedia' cannot be .*no answer.*'stdlib'"):
        next(texts)


def test_without_datasets(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "datasets":
            raise ModuleNotFoundError("No module named 'datasets'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ImportError, match=r"^corpus: 'wikipedia' needs the package datasets.*normgeom\[hub\].*'stdlib'"
    ):
        load_corpus("wikipedia")
    assert load_corpus("stdlib").provenance["name"] == "stdlib", "the offline corpus needs no other package"


# text as token ids
