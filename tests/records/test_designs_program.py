"""The sweep of designs, a few updates a run: what is recorded was run, once, with more seeds at its best rate."""

import json

import normgeom as ng
import pytest
import torch
from click.testing import CliRunner
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, random_windows
from normgeom.training.loop import next_token_loss
from normgeom_lab.placement import train_bytes

pytestmark = pytest.mark.slow


@pytest.fixture
def small(monkeypatch, tmp_path):
    from records import designs

    grid = dict(design=("scaled", "sphere"), layers=(1,), rate=(1e-4, 1e-2), warmup=(5,), seed=(0,))
    monkeypatch.setattr(designs, "CHOSEN_ON", (grid,))
    monkeypatch.setattr(designs, "LAYERS", (1,))
    monkeypatch.setattr(designs, "SEEDS", (1,))
    monkeypatch.setattr("normgeom.records.FOLDER", tmp_path)
    return designs, tmp_path


def write(designs, folder):
    options = ["--steps", "20", "--processes", "1", "--folder", folder, "--kept", folder / "kept"]
    done = CliRunner().invoke(designs.main, [str(o) for o in options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return ng.recorded("designs-training").table


def test_each_run_is_recorded_once_and_the_best_rate_has_more_seeds(small):
    designs, folder = small
    table = write(designs, folder)
    assert len(table) == 6, "two rates at one seed, and a second seed at the better one, of two designs"
    more = table[table.seed == 1].set_index("design").rate
    first = table[table.seed == 0].sort_values("held_out").groupby("design").rate.first()
    assert more.to_dict() == first.to_dict(), "the second seed is not of the rate of the lowest held-out loss"

    tokens = byte_tokens("".join(load_corpus("stdlib").texts()))
    model, losses = train_bytes(tokens, "sphere", 1, 1e-2, 20, seed=0, warmup=5, batch=8)
    row = table.query("design == 'sphere' and rate == 0.01 and seed == 0").iloc[0]
    assert row.loss == pytest.approx(sum(losses) / 20, rel=1e-4), (
        "another seed, rate or schedule, or weights left alone"
    )
    with torch.no_grad():
        other = float(next_token_loss(model, next(random_windows(tokens, 65, 64, 1000))))
    assert row.held_out == pytest.approx(other, rel=1e-4)
    assert abs(float(model.head.weight.detach().norm(dim=1).mean()) - 1) < 1e-6

    kept = folder / "kept"
    lines = kept.read_text().splitlines()
    changed = json.loads(lines[0])
    changed["losses"] = [1.0, 7.0, 7.0, 7.0]
    kept.write_text("\n".join([json.dumps(changed), *lines[1:3]]) + "\n")  # as if the rest had been interrupted
    again = write(designs, folder)
    design, _layers, rate, _warmup, seed, _steps = changed["key"]
    key = f"design == {design!r} and rate == {rate} and seed == {seed}"
    assert again.query(key).held_out.tolist() == [7.0], "a finished run was run again"
