"""Corpora: where a text comes from, and how it is read as a stream."""

import argparse
import hashlib
import inspect
import platform
import sys

import datasets
import huggingface_hub
import pandas as pd
import pytest
from normgeom.text import corpora
from normgeom.text.corpora import load_corpus


@pytest.fixture(scope="module")
def stdlib():
    return load_corpus()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A "wikipedia" of three articles, in a folder instead of on the hub."""
    texts = ["first article\nof two lines", "second", "γ ⊙ n"]
    pd.DataFrame(dict(title=["a", "b", "c"], text=texts)).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    monkeypatch.setattr(corpora, "HUB", dict(wikipedia=(str(tmp_path), "default", None)))
    return texts


def test_the_offline_corpus_is_real_text(stdlib):
    documents = list(stdlib.texts())
    assert 100 < len(documents) < 1000 and all(documents), "topics and modules, none of them empty"
    assert documents == list(stdlib.texts()) and stdlib.text == "\n\n".join(documents)
    starts = 'The "assert" statement', "Command-line parsing library"
    topic, module = (next(text for text in documents if text.startswith(start)) for start in starts)
    word = "Object for parsing command line strings"
    assert word in module and word not in topic, "a topic is a document, all docstrings of a module another"
    assert inspect.cleandoc(argparse.__doc__) + "\n\n" in module, "a blank line parts docstrings"


def test_provenance_of_the_offline_corpus(stdlib):
    digest = hashlib.sha256("".join(stdlib.texts()).encode()).hexdigest()
    assert stdlib.provenance == dict(name="stdlib", python=platform.python_version(), sha256=digest)


@pytest.mark.parametrize("text", ["γ ⊙ n + β\nsecond line\n", "", "word " * 100_000, "a line — its end\n" * 40_000])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_text_file_is_read_in_pieces(tmp_path, text, encoding):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding=encoding)
    corpus = load_corpus(str(path))
    pieces = list(corpus.texts())
    assert corpus.text == "".join(pieces) == text, "characters are lost or doubled between pieces"
    assert max(map(len, pieces), default=0) <= 2**17, "read whole: memory grows with the file"
    assert len(pieces) < 3 or "\n" not in text or all(piece.endswith("\n") for piece in pieces), "a line is cut"
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert corpus.provenance == dict(name="text.txt", sha256=digest), "no folder, nor Python's version"


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("Größe".encode("latin-1"), ValueError, r"expected text.txt to be UTF-8 text, got .*0xf6"),
        (
            None,
            FileNotFoundError,
            r"expected 'stdlib' \(needs no network\), 'wikipedia', .* or a text file, got '.*text",
        ),
        ("folder", FileNotFoundError, r"expected 'stdlib'"),
    ],
)
def test_a_file_that_is_no_text(tmp_path, content, error, message):
    path = tmp_path / "text.txt"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=f"^corpus: {message}"):
        load_corpus(path)


@pytest.mark.parametrize("name", corpora.HUB)
def test_hub_corpora_are_pinned_to_a_commit(name):
    *_, revision = corpora.HUB[name]
    assert len(revision) == 40 and int(revision, 16), "a branch moves, a commit does not"


def test_a_corpus_on_the_hub_is_streamed(hub, monkeypatch):
    asked, load = [], datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda *of, **how: asked.append(how) or load(*of, **how))
    corpus = load_corpus("wikipedia")
    assert list(corpus.texts()) == list(corpus.texts()) == hub
    assert all(how["streaming"] for how in asked), "all of it would be downloaded"
    assert corpus.between == "\n\n" and corpus.provenance == dict(name="wikipedia", source=corpora.HUB["wikipedia"])
    with pytest.raises(ValueError, match=r"^corpus: expected 'stdlib' or a text file here, wikipedia is too large"):
        _ = corpus.text


def breaks(*_, **__):
    yield dict(text="one")
    raise TimeoutError("no answer")


@pytest.mark.parametrize("name", corpora.HUB)
@pytest.mark.parametrize("missing", ["network", "datasets"])
def test_without_a_hub_the_offline_corpus_is_named(name, missing, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    if missing == "datasets":
        monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConnectionError, match=rf"^corpus: '{name}' cannot be .*normgeom\[hub\], 'stdlib' and text fi"):
        load_corpus(name)


def test_a_connection_that_breaks(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", breaks)
    texts = iter(load_corpus("wikipedia").texts())
    assert next(texts) == "one"
    with pytest.raises(ConnectionError, match=r"^corpus: 'wikipedia' cannot be .*no answer.*'stdlib'"):
        next(texts)
