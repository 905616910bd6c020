"""Corpora: where a text comes from, and how it is read as a stream."""

import argparse
import hashlib
import inspect
import platform

import datasets
import pandas as pd
import pytest
from normgeom.text import corpora
from normgeom.text.corpora import load_corpus


def test_the_offline_corpus_is_real_text():
    stdlib = load_corpus()
    documents = list(stdlib.texts())
    assert 100 < len(documents) < 1000 and all(documents), "topics and modules, none of them empty"
    assert documents == list(stdlib.texts()) and stdlib.text == "\n\n".join(documents)
    starts = 'The "assert" statement', "Command-line parsing library"
    topic, module = (next(text for text in documents if text.startswith(start)) for start in starts)
    word = "Object for parsing command line strings"
    assert word in module and word not in topic, "a topic is a document, all docstrings of a module another"
    assert inspect.cleandoc(argparse.__doc__) + "\n\n" in module, "a blank line parts docstrings"
    assert stdlib.provenance == dict(name="stdlib", python=platform.python_version())


@pytest.mark.parametrize("text", ["γ ⊙ n + β\nsecond line\n", "", "word " * 100_000, "a line — its end\n" * 40_000])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_text_file_is_read_in_pieces(tmp_path, text, encoding):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding=encoding)
    corpus = load_corpus(str(path))
    pieces = list(corpus.texts())
    assert corpus.text == "".join(pieces) == text, "characters are lost or doubled between pieces"
    if "\n" in text:
        assert max(map(len, pieces)) < 2**17, "read whole: memory grows with the file"
        assert all(piece.endswith("\n") for piece in pieces), "a line is cut"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert corpus.provenance == dict(name="text.txt", sha256=digest), "no folder, nor Python's version"


def test_what_is_no_text(tmp_path):
    (tmp_path / "text.txt").write_bytes("Größe".encode("latin-1"))
    with pytest.raises(ValueError, match=r"^corpus: expected text.txt to be UTF-8 text, got .*0xf6"):
        _ = load_corpus(tmp_path / "text.txt").text
    for name in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=rf"^corpus: expected 'stdlib' .* or a text file, got '{name}'"):
            load_corpus(name)


def test_a_corpus_on_the_hub_is_streamed(tmp_path, monkeypatch):
    """A "wikipedia" of three articles, in a folder instead of on the hub."""
    texts = ["first article\nof two lines", "second", "γ ⊙ n"]
    pd.DataFrame(dict(title=["a", "b", "c"], text=texts)).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    monkeypatch.setattr(corpora, "WIKIPEDIA", (str(tmp_path), "default", None))
    asked, load = [], datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda *of, **how: asked.append(how) or load(*of, **how))
    corpus = load_corpus("wikipedia")
    assert list(corpus.texts()) == list(corpus.texts()) == texts
    assert all(how["streaming"] for how in asked), "all of it would be downloaded"
    assert corpus.between == "\n\n" and corpus.provenance == dict(name="wikipedia", source=corpora.WIKIPEDIA)
