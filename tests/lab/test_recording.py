"""What is recorded comes back, whole or not at all."""

import normgeom as ng
import pandas as pd
import pytest
import torch
from normgeom import records
from normgeom_lab.common import recording

TABLE = pd.DataFrame({"site": ["a", "b"], "value": [1.0, 1 / 3]})


def test_a_record_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    path = recording.record("some", TABLE, "Something.", tmp_path, seed=3, model="a model")
    assert path == tmp_path / "some.csv"
    got = ng.recorded("some")
    pd.testing.assert_frame_equal(got.table, TABLE, rtol=1e-6)
    assert str(got).startswith("what: Something.\nseed: 3\nmodel: a model\n")
    assert got.provenance.keys() >= {"device", "versions", "date", "command"}
    tensors = {"a": torch.randn(3, 2).half(), "b": torch.arange(4)}
    recording.record_tensors("others", tensors, "Something.", tmp_path, seed=3)
    got, provenance = recording.recorded_tensors("others", tmp_path)
    assert got.keys() == tensors.keys() and all(got[name].equal(t) for name, t in tensors.items())
    assert provenance["seed"] == "3"
    names = {"some.csv", "some.json", "others.safetensors", "others.json"}
    assert {p.name for p in tmp_path.iterdir()} == names, "a draft was left behind"


def test_what_cannot_be_written_leaves_the_old_record(tmp_path, monkeypatch):
    recording.record("some", TABLE, "Old.", tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording.Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        recording.record("some", TABLE * 2, "New.", tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
