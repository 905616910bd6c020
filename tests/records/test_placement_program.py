"""The sweep of placements, with runs of a few updates: what is recorded is what was run, once."""

import json

import normgeom as ng
import pytest
from click.testing import CliRunner
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, random_windows
from normgeom_lab.placement import first_over_last, train_bytes, varying_share

pytestmark = pytest.mark.slow


@pytest.fixture
def small(monkeypatch, tmp_path):
    from records import placement

    grid = dict(placement=("pre", "post"), layers=(1,), rate=(1e-3,), warmup=(0, 5), seed=(3,))
    monkeypatch.setattr(placement, "SWEEP", grid)
    monkeypatch.setattr(placement, "DEEP", dict(grid, warmup=(0,)))
    monkeypatch.setattr(placement, "STARTS", dict(rate=(1e-3,), seed=(3, 4), placement=("post",)))
    monkeypatch.setattr(placement, "SCALES", dict(norm=("none", "rms"), scale=(0.5,), rate=(1e-3,), seed=(3,)))
    monkeypatch.setattr("normgeom.records.FOLDER", tmp_path)
    return placement, tmp_path


def run(placement, folder):
    options = ["--steps", "20", "--processes", "1", "--folder", folder, "--kept", folder / "kept"]
    done = CliRunner().invoke(placement.main, [str(o) for o in options], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_the_record_is_of_the_runs_and_finished_runs_are_kept(small):
    import torch

    placement, folder = small
    run(placement, folder)
    table, deep = ng.recorded("sweep-placement").table, ng.recorded("deep-placement").table
    assert len(table) == 4 and len(deep) == 4
    tokens = byte_tokens("".join(load_corpus("stdlib").texts()))
    _, losses = train_bytes(tokens, "post", 1, 1e-3, 20, seed=3, warmup=5, batch=8)
    got = table.query("placement == 'post' and warmup == 5").loss.iloc[0]
    assert got == pytest.approx(sum(losses) / 20, rel=1e-4), "another seed, text, schedule or placement"

    starts, scales = ng.recorded("starts-placement").table, ng.recorded("scales-placement").table
    assert starts.seed.tolist() == [3, 4] and scales.norm.tolist() == ["none", "rms"]
    torch.set_default_dtype(torch.float64)
    try:
        model, losses = train_bytes(tokens, "post", 6, 1e-3, 20, seed=4)
        _, bare = train_bytes(tokens, "none", 6, 1e-3, 20, seed=3, scale=0.5)
    finally:
        torch.set_default_dtype(torch.float32)
    probe = next(random_windows(tokens, 65, 64, 1004))
    measured = [sum(losses[-10:]) / 10, varying_share(model, probe), first_over_last(model, probe)]
    got = starts.loc[1, ["loss", "varying", "first_over_last"]].tolist()
    assert got == pytest.approx(measured, rel=1e-3), "another seed, or another model measured"
    assert scales.loss[0] == pytest.approx(sum(bare) / 20, rel=1e-4), "another norm, scale or seed"

    kept = folder / "kept"
    lines = kept.read_text().splitlines()
    changed = json.loads(lines[0])
    changed["losses"] = [7.0] * 20
    kept.write_text(json.dumps(changed) + "\n")  # as if the rest had been interrupted
    run(placement, folder)
    key = dict(zip(("placement", "layers", "rate", "warmup", "seed"), changed["key"], strict=False))
    again = ng.recorded("sweep-placement").table
    mine = (again[list(key)] == list(key.values())).all(axis=1)
    assert again[mine].loss.tolist() == [7.0], "a finished run was run again"
    assert again[~mine].equals(table[~mine.values]), "the others differ from the first time"
