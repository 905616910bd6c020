"""Recorded measurements: written whole, read back, and complete in their provenance."""

import json
from pathlib import Path

import normgeom as ng
import pandas as pd
import pytest
import torch
from normgeom import records

TABLE = pd.DataFrame({"site": ["a", "b"], "value": [1.0, 1 / 3]})
NEEDED = {"what", "device", "versions", "date", "command"}


def test_a_record_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    path = records.record("some", TABLE, "Something.", folder=tmp_path, seed=3, model="a model")
    assert path == tmp_path / "some.csv"
    got = ng.recorded("some")
    pd.testing.assert_frame_equal(got.table, TABLE, rtol=1e-6)
    assert set(got.provenance) >= NEEDED and got.provenance["seed"] == "3"
    assert str(got).startswith("what: Something.\nseed: 3\nmodel: a model\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["some.csv", "some.json"], "a draft was left behind"


def test_what_cannot_be_written_leaves_the_old_record(tmp_path, monkeypatch):
    records.record("some", TABLE, "Old.", folder=tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write, calls = Path.write_bytes, []

    def full(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        records.record("some", TABLE * 2, "New.", folder=tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_tensors_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    tensors = {"a": torch.randn(3, 2).half(), "b": torch.arange(4)}
    assert records.record_tensors("some", tensors, "Something.", tmp_path, seed=3) == tmp_path / "some.safetensors"
    got, provenance = records.recorded_tensors("some")
    assert got.keys() == tensors.keys() and all(got[name].equal(t) for name, t in tensors.items())
    assert set(provenance) >= NEEDED and provenance["seed"] == "3"
    with pytest.raises(ValueError, match=r"name: expected one of \['some'\], got 'other'"):
        records.recorded_tensors("other")


def test_an_unknown_name_lists_the_known(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    records.record("some", TABLE, "Something.", folder=tmp_path)
    with pytest.raises(ValueError, match=r"name: expected one of \['some'\], got 'other'"):
        ng.recorded("other")


def test_every_record_of_the_book_has_its_provenance():
    tables = sorted(records.FOLDER.glob("*.csv"))
    assert tables, "the book carries recorded measurements: is figures/data where the library looks for it?"
    for path in tables:
        table, provenance = ng.recorded(path.stem)
        assert len(table) and table.notna().all(axis=None), f"{path.name} has holes"
        assert set(provenance) >= NEEDED, f"{path.name}: provenance lacks {NEEDED - set(provenance)}"
        assert path.stat().st_size < 200_000, f"{path.name}: a record is a small table"
    weights = sorted(records.FOLDER.glob("*.safetensors"))
    for path in weights:
        _, provenance = records.recorded_tensors(path.stem)
        assert set(provenance) >= NEEDED, f"{path.name}: provenance lacks {NEEDED - set(provenance)}"
        assert path.stat().st_size < 1_000_000, f"{path.name}: what a page carries is small"
    notes = {path.stem for path in records.FOLDER.glob("*.json")}
    assert notes == {path.stem for path in [*tables, *weights]}, "a table without a note, or a note without a table"
    for note in records.FOLDER.glob("*.json"):
        words = json.dumps(json.loads(note.read_text("utf-8")))
        assert "/home" not in words and "/tmp" not in words and "/work" not in words, f"{note.name} names a folder"
