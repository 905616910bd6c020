"""One training: the order of its windows, its tables, and that no disturbance leaves a trace."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_training
import torch
from norm_checks import close
from normgeom.training import trainer
from normgeom.training.loop import train
from normgeom.training.stages import measure_stage
from normgeom.training.trainer import DIRECTIONS, Run, Windows
from normgeom.training.twins import SIZES
from tiny_training import HELD_OUT, SIZE, TEXT, fit, model, recorded, same_results, stopped

STEPS, BATCH, LENGTH = SIZE.steps, SIZE.batch, SIZE.length
WINDOWS = torch.from_numpy(TEXT[: 15 * LENGTH].astype(np.int64)).view(15, LENGTH)


def losses(folder):
    return torch.tensor(pd.read_parquet(folder / "curve.parquet").loss)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed training: its folder, the model, and the ids that went through it."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    network = model()
    seen = recorded(network)
    return folder, fit(folder, network=network), seen


# windows


def places(windows):
    """Which window of the text each item is."""
    found = {tuple(window.tolist()): place for place, window in enumerate(WINDOWS)}
    return [found[tuple(windows[i]["input_ids"].tolist())] for i in range(len(windows))]


def test_each_window_once_an_epoch_in_an_order_of_its_own():
    order = places(Windows(TEXT, LENGTH, 40, seed=0))
    epochs = [order[:15], order[15:30]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(15))] * 2, "a window is left out or read twice"
    assert len({tuple(epoch) for epoch in (*epochs, range(15))}) == 3 and len(set(order[30:])) == len(order[30:]) == 10
    assert order != places(Windows(TEXT, LENGTH, 40, seed=1))
    torch.manual_seed(7)
    np.random.seed(7)
    assert order == places(Windows(TEXT.astype(np.int64), LENGTH, 60, seed=0))[:40], "the order is of the seed alone"


# when it is measured


def test_the_papers_stages():
    """Appendix A.2: 0 and 1K to 10K by one, then by ten thousands."""
    thousand = {1000 * k for k in (*range(11), *range(20, 110, 10))}
    assert Run(SIZES["70M"]).stages == Run(SIZES["160M"]).stages == thousand
    assert Run(SIZES["410M"]).stages == Run(SIZES["1B"]).stages == {k for k in thousand if k <= 50_000}


@pytest.mark.parametrize("steps", [1, 3, 4, 30, 31, 61, 119])
def test_the_last_step_is_always_a_stage(steps):
    expected = {step for step in (*range(0, 30, 3), 30, 60, 90) if step < steps} | {steps}
    assert Run(replace(SIZE, steps=steps, eval_interval=3)).stages == expected


# what is written


def test_the_tables(whole):
    folder, trained, _ = whole
    names = ["model", *(f"{name}.parquet" for name in tiny_training.TABLES)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names), "checkpoints or parts are left"
    tables = tiny_training.tables(folder)
    assert list(tables["curve"].step) == list(range(1, STEPS + 1)), "a line of the curve for each step"
    for name in tiny_training.TABLES[1:]:
        assert list(tables[name].step.unique()) == [0, 4, 8], f"{name}: stages are missing or out of order"
    for step, network in ((0, model()), (STEPS, trained)):
        for name, table in measure_stage(network, HELD_OUT, DIRECTIONS, 3).items():
            got = tables[name].query("step == @step").drop(columns="step").reset_index(drop=True)
            pd.testing.assert_frame_equal(got, table, check_exact=True, obj=f"{name} after {step} steps")


def test_a_finished_folder_is_left_as_it_is(whole, monkeypatch):
    folder, *_ = whole
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(trainer, "Trainer", lambda **_: pytest.fail("trained again"))
    fit(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_model_without_norms_has_a_loss_alone(tmp_path):
    fit(tmp_path, "none")
    assert {path.name for path in tmp_path.iterdir()} == {"curve.parquet", "loss.parquet", "model"}


def test_nothing_is_printed_and_no_other_file_is_left(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    stopped(Path("out"), 6)
    fit(Path("out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert capfd.readouterr() == ("", ""), "Trainer talks"


def test_a_loss_that_is_not_a_number_is_shown(tmp_path):
    """Trainer would put the mean of the losses before in its place: here 0."""

    def spoil(module, args, output):
        if module.training:
            output.loss = output.loss * math.nan

    network = model("none")
    handle = network.register_forward_hook(spoil)
    fit(tmp_path, network=network)
    handle.remove()
    assert losses(tmp_path).isnan().all(), f"a diverged model with losses {losses(tmp_path).tolist()}"


# each step


@pytest.mark.parametrize(("norm", "micro_batch"), [("layer", None), ("rms", None), ("layer", 1), ("rms", 2)])
def test_a_training_is_that_of_the_loop(tmp_path, norm, micro_batch):
    """Whose formulas are tested in test_loop; 20 steps, the gradients of some are clipped."""
    size = replace(SIZE, steps=20)
    networks = [model(norm, size) for _ in range(2)]
    for network in networks:
        network.transformer.wte.weight.data *= 20  # gradients longer than 1
    order = Windows(TEXT, LENGTH, 20 * BATCH, seed=3)
    batches = torch.stack([order[i]["input_ids"] for i in range(20 * BATCH)]).split(BATCH)
    expected = torch.tensor(train(networks[0], batches, 20, size.rate, None), dtype=torch.float64)
    seen = recorded(networks[1])
    trained = fit(tmp_path, network=networks[1], size=size, micro_batch=micro_batch)
    assert {len(ids) for ids in seen} == {micro_batch or BATCH} and torch.equal(torch.cat(seen), torch.cat(batches))
    curve = pd.read_parquet(tmp_path / "curve.parquet")
    assert curve.grad_norm.min() < 1 < curve.grad_norm.max(), "clipping makes no difference, or all of it"
    tol = 1e-3 if micro_batch else 1e-6
    close(torch.tensor(curve.loss), expected, tol, "losses", "A mean over L? A sum over what is accumulated?")
    assert curve.learning_rate[:2].tolist() == [size.rate / 2, size.rate], "the rate of the step after?"
    for (name, p), q in zip(trained.named_parameters(), networks[0].parameters(), strict=True):
        close(p, q, tol, name, "Decay? Clipping? Warm-up? Cosine? ε of Adam?")


def test_measuring_changes_nothing(whole, tmp_path, monkeypatch):
    """Bit for bit: neither the model nor a random number is touched."""
    folder, trained, _ = whole
    monkeypatch.setattr(trainer, "measure_stage", lambda *_: {})
    again = fit(tmp_path)
    assert torch.equal(losses(tmp_path), losses(folder))
    assert all(map(torch.equal, again.parameters(), trained.parameters()))


def test_mixed_precision(whole, tmp_path):
    trained = fit(tmp_path, precision="bf16")
    off = float((losses(tmp_path) - losses(whole[0])).abs().max())
    assert 0 < off < 0.05, f"losses in bf16 are off by {off}"
    assert {p.dtype for p in trained.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(micro_batch=3), "^micro_batch: expected a divisor of 4, the batch, got 3$"),
        (dict(micro_batch=8), "^micro_batch: expected a divisor of 4, the batch, got 8$"),
        (dict(precision="fp16"), "^precision: expected 'no' or 'bf16', got 'fp16'$"),
    ],
)
def test_a_run_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        Run(SIZE, **given)


# an interruption


@pytest.mark.parametrize(
    "where",
    [
        (2, torch.optim.AdamW, "step"),
        (3, trainer.Trainer, "save_model", True),
        (6, pd.DataFrame, "to_parquet"),
        (1, trainer, "save_twin"),
        (1, trainer.os, "replace", True),
        (1, trainer.shutil, "rmtree"),
    ],
    ids=lambda where: f"{where[2]} {where[0]}",
)
def test_an_interruption_leaves_no_trace(whole, tmp_path, where):
    """Curve, measurements and weights, bit for bit."""
    stopped(tmp_path, *where)
    fit(tmp_path)
    same_results(tmp_path, whole[0])


@pytest.mark.parametrize(("first", "steps"), [(2, STEPS), (6, 4), (8, 2)])
def test_what_is_done_is_not_done_again(whole, tmp_path, first, steps):
    """Stopped in that step, the training goes on behind the last checkpoint, with the windows that come there."""
    stopped(tmp_path, first)
    network = model()
    seen = recorded(network)
    fit(tmp_path, network=network)
    assert len(seen) == steps and all(map(torch.equal, seen, whole[2][-steps:])), "other windows"
    same_results(tmp_path, whole[0])


# damage


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"])
def test_a_damaged_checkpoint_says_what_to_delete(tmp_path, name):
    stopped(tmp_path, 8)
    cut(tmp_path / "checkpoint-6" / name)
    with pytest.raises(OSError, match=r"(?s)^out: .*checkpoint-6 is damaged \(.*\); delete it and run the same comma"):
        fit(tmp_path)


def test_a_checkpoint_that_was_cut_short_is_passed_over(whole, tmp_path):
    stopped(tmp_path, 6)
    (tmp_path / "checkpoint-8").mkdir()
    (tmp_path / "checkpoint-8" / "model.safetensors").write_bytes(b"half")
    fit(tmp_path)
    same_results(tmp_path, whole[0])


def test_a_damaged_table_says_what_to_delete(tmp_path):
    stopped(tmp_path, 8)
    cut(tmp_path / "loss.parquet")
    with pytest.raises(OSError, match=rf"^out: {tmp_path}/loss.parquet is damaged \(.*\); delete its folder and run"):
        fit(tmp_path)


def test_an_error_in_a_resumed_training_is_no_damage(tmp_path, monkeypatch):
    stopped(tmp_path, 6)
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path)
