"""Recorded measurements of the book: each is found by its name and complete in its provenance."""

import json

import normgeom as ng
import pytest
from normgeom import records

NEEDED = {"what", "device", "versions", "date", "command"}


def test_every_record_of_the_book_has_its_provenance():
    tables, weights = (sorted(records.FOLDER.glob(pattern)) for pattern in ("*.csv", "*.safetensors"))
    assert tables, "the book carries recorded measurements: is figures/data where the library looks for it?"
    for path in tables:
        table, provenance = ng.recorded(path.stem)
        assert len(table) and table.notna().all(axis=None), f"{path.name} has holes"
        assert set(provenance) >= NEEDED, f"{path.name}: provenance lacks {NEEDED - set(provenance)}"
        assert path.stat().st_size < 200_000, f"{path.name}: a record is a small table"
    for path in weights:
        provenance = json.loads(path.with_suffix(".json").read_text("utf-8"))
        assert set(provenance) >= NEEDED, f"{path.name}: provenance lacks {NEEDED - set(provenance)}"
        assert path.stat().st_size < 1_000_000, f"{path.name}: what a page carries is small"
    notes = {path.stem for path in records.FOLDER.glob("*.json")} - {"conformance"}  # vectors for other languages
    assert notes == {path.stem for path in [*tables, *weights]}, "a table without a note, or a note without a table"
    for note in records.FOLDER.glob("*.json"):
        words = json.dumps(json.loads(note.read_text("utf-8")))
        assert not any(folder in words for folder in ("/home", "/tmp", "/work")), f"{note.name} names a folder"


def test_an_unknown_name_lists_the_known(tmp_path, monkeypatch):
    (tmp_path / "some.csv").touch()
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"^name: expected one of \['some'\], got 'other'"):
        ng.recorded("other")
