"""One training: the order of its windows, its tables, and that no disturbance leaves a trace."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_training
import torch
from norm_checks import close
from normgeom import jobs
from normgeom.training import trainer
from normgeom.training.loop import adamw, next_token_loss, warmup_cosine
from normgeom.training.stages import measure_stage
from normgeom.training.trainer import DIRECTIONS, reading_order
from tiny_training import HELD_OUT, SIZE, TEXT, fit, model, recorded, same_results, stopped

STEPS, BATCH, LENGTH = SIZE.steps, SIZE.batch, SIZE.length
WINDOWS = TEXT[: 15 * LENGTH].view(15, LENGTH)


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


def test_each_window_once_an_epoch_in_an_order_of_its_own():
    order = reading_order(40, 15, seed=0).tolist()
    epochs = [order[:15], order[15:30]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(15))] * 2, "a window is left out or read twice"
    assert len({tuple(epoch) for epoch in (*epochs, range(15))}) == 3 and len(set(order[30:])) == len(order[30:]) == 10
    assert order != reading_order(40, 15, seed=1).tolist()
    torch.manual_seed(7)
    np.random.seed(7)
    assert order == reading_order(60, 15, seed=0)[:40].tolist(), "the order is of the seed alone"


# when it is measured


@pytest.mark.parametrize("steps", [1, 30, 31, 119])
def test_the_last_step_is_always_a_stage(steps):
    expected = {step for step in (*range(0, 30, 3), 30, 60, 90) if step < steps} | {steps}
    assert replace(SIZE, steps=steps, eval_interval=3).stages == expected


# what is written


def test_the_tables(whole):
    folder, trained, _ = whole
    names = ["model", "provenance.json", *(f"{name}.parquet" for name in tiny_training.TABLES)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names), "checkpoints or parts are left"
    tables = tiny_training.tables(folder)
    assert list(tables["curve"].step) == list(range(1, STEPS + 1)), "a line of the curve for each step"
    for name in tiny_training.TABLES[1:]:
        assert list(tables[name].step.unique()) == [0, 2, 4, 6, 8], f"{name}: stages are missing or out of order"
    for step, network in ((0, model()), (STEPS, trained)):
        for name, table in measure_stage(network, HELD_OUT, DIRECTIONS, 3).items():
            got = tables[name].query("step == @step").drop(columns="step").reset_index(drop=True)
            pd.testing.assert_frame_equal(got, table, check_exact=True, obj=f"{name} after {step} steps")


def test_nothing_is_printed_and_no_other_file_is_left(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    stopped(Path("out"), 6)
    fit(Path("out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert capfd.readouterr() == ("", ""), "transformers talks"


def test_a_loss_that_is_not_a_number_is_shown(tmp_path):
    def spoil(module, args, output):
        if module.training:
            output.logits = output.logits * math.nan

    network = model()
    network.register_forward_hook(spoil)
    with pytest.raises(ValueError, match=r"wrong weights, 13 in all: .* \(NaN or Inf\)"):
        fit(tmp_path, network=network)
    assert losses(tmp_path).isnan().all(), f"a diverged model with losses {losses(tmp_path).tolist()}"


# each step


def by_hand(network, batches, size):
    optimizer = adamw(network, size.lr)
    schedule, found, lengths = warmup_cosine(optimizer, size.steps), [], []
    for ids in batches:
        loss = next_token_loss(network, ids)
        optimizer.zero_grad()
        loss.backward()
        lengths.append(float(torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)))
        optimizer.step()
        schedule.step()
        found.append(float(loss.detach()))
    return torch.tensor(found, dtype=torch.float64), lengths


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_training_is_that_of_the_loop(tmp_path, norm):
    """Optimizer and schedule are tested in test_loop; 20 steps, the gradients of some are clipped."""
    size = replace(SIZE, steps=20)
    networks = [model(norm, size) for _ in range(2)]
    for network in networks:
        network.transformer.wte.weight.data *= 20  # gradients longer than 1
    batches = WINDOWS[reading_order(20 * BATCH, 15, seed=3)].split(BATCH)
    expected, lengths = by_hand(networks[0], batches, size)
    assert min(lengths) < 1 < max(lengths), "clipping makes no difference, or all of it"
    seen = recorded(networks[1])
    trained = fit(tmp_path, network=networks[1], size=size)
    assert all(map(torch.equal, seen, batches)) and len(seen) == len(batches)
    close(losses(tmp_path), expected, 1e-6, "losses", "A mean over L?")
    for (name, p), q in zip(trained.named_parameters(), networks[0].parameters(), strict=True):
        close(p, q, 1e-6, name, "Decay? Clipping? Warm-up? Cosine? ε of Adam?")


def test_measuring_changes_nothing(whole, tmp_path, monkeypatch):
    """Bit for bit: neither the model nor a random number is touched."""
    folder, trained, _ = whole
    monkeypatch.setattr(trainer, "measure_stage", lambda *_: {})
    again = fit(tmp_path)
    assert torch.equal(losses(tmp_path), losses(folder))
    assert all(map(torch.equal, again.parameters(), trained.parameters()))


# an interruption


@pytest.mark.parametrize(
    "where",
    [
        (2, torch.optim.AdamW, "step"),
        (3, torch, "save", True),
        (18, pd.DataFrame, "to_parquet"),
        (1, trainer, "save_twin"),
        (4, jobs.os, "replace", True),
        (9, jobs.Claim, "save"),
        (2, jobs.Claim, "drop"),
        (3, jobs.shutil, "rmtree"),
    ],
    ids=lambda where: f"{where[2]} {where[0]}",
)
def test_an_interruption_leaves_no_trace(whole, tmp_path, where):
    """Curve, measurements and weights, bit for bit."""
    stopped(tmp_path, *where)
    fit(tmp_path)
    same_results(tmp_path, whole[0])


# damage


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unfinished") / "out"
    stopped(folder, 8)
    return folder


@pytest.fixture(scope="module")
def of_another_seed(tmp_path_factory):
    """Folders of an unfinished and a finished training with another seed."""
    folder = tmp_path_factory.mktemp("other")
    stopped(folder / "unfinished", 8, seed=4)
    fit(folder / "finished", seed=4)
    return folder


FILES = ["checkpoint-6/state.pt", "checkpoint-6/survey.parquet", "loss.parquet", "model/converted.safetensors"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["a flipped bit", "of another seed"])
def test_what_is_not_as_it_was_left_is_refused(whole, unfinished, of_another_seed, tmp_path, name, damage):
    """By name, with what to delete; what was deleted is made again."""
    state = "unfinished" if name.startswith("checkpoint") else "finished"
    out = shutil.copytree(unfinished if state == "unfinished" else whole[0], tmp_path / "out")
    content = bytearray((out / name).read_bytes())
    content[len(content) // 2] ^= 1
    (out / name).write_bytes(content if damage == "a flipped bit" else (of_another_seed / state / name).read_bytes())
    entry = out / name.partition("/")[0]
    with pytest.raises(OSError, match=rf"^out: {entry} is not as this run left it; delete it and run the same command"):
        fit(out)
    jobs.remove(entry)
    fit(out)
    same_results(out, whole[0])
    assert contents(out) == contents(whole[0])


@pytest.mark.parametrize("name", ["checkpoint-8", "model.part"])
def test_what_a_kill_left_half_written_is_passed_over(whole, unfinished, tmp_path, name):
    out = shutil.copytree(unfinished, tmp_path / "out")
    (out / name).mkdir()
    (out / name / "model.safetensors").write_bytes(b"half")
    fit(out)
    same_results(out, whole[0])
    assert contents(out) == contents(whole[0])


def contents(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def test_an_error_in_a_resumed_training_is_no_damage(unfinished, tmp_path, monkeypatch):
    out = shutil.copytree(unfinished, tmp_path / "out")
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(out)
