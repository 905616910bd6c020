"""One training: the order of its windows, each of its updates, and that no disturbance leaves a trace."""

import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import tiny_training
import torch
from norm_checks import close
from normgeom.training import trainer
from normgeom.training.stages import measure_stage
from normgeom.training.trainer import Run, Windows
from normgeom.training.twins import SIZES, train
from safetensors.torch import load_file, save_file
from tiny_training import HELD_OUT, KILLED, SIZE, TEXT, fit, losses, model, recorded, same_results, weights

STEPS, BATCH, LENGTH = SIZE.steps, SIZE.batch, SIZE.length
WINDOWS = torch.from_numpy(TEXT[: 15 * LENGTH].astype(np.int64)).view(15, LENGTH)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed training: its folder, the model, the ids that went through it, and what was said on stderr."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    network = model()
    seen = recorded(network)
    fit(folder, network=network)
    return folder, weights(network), seen


def same_weights(got, expected, tol=0.0):
    for name, value in expected.items():
        close(got[name], value, tol, name, "Another order, another update, another start?")


# windows


def places(windows):
    """Which window of the text each item is."""
    found = {tuple(window.tolist()): place for place, window in enumerate(WINDOWS)}
    return [found[tuple(windows[i]["input_ids"].tolist())] for i in range(len(windows))]


def test_each_window_once_an_epoch():
    order = places(Windows(TEXT, LENGTH, 40, seed=0))
    assert sorted(order[:15]) == sorted(order[15:30]) == list(range(15)), "a window is left out or read twice"
    assert len(set(order[30:])) == 10


def test_each_epoch_has_an_order_of_its_own():
    order = places(Windows(TEXT, LENGTH, 45, seed=0))
    epochs = [order[:15], order[15:30], order[30:]]
    assert all(a != b for a in epochs for b in (*([e for e in epochs if e is not a]), list(range(15))))


def test_the_order_depends_on_the_seed_alone():
    order = places(Windows(TEXT, LENGTH, 40, seed=0))
    torch.manual_seed(7)
    np.random.seed(7)
    longer = Windows(torch.from_numpy(TEXT).long().numpy(), LENGTH, 60, seed=0)
    backwards = [longer[i]["input_ids"] for i in reversed(range(40))][::-1]
    for got, place in zip(backwards, order, strict=True):
        assert torch.equal(got, WINDOWS[place]), "other windows when asked for in another order, or for more of them"
    assert order != places(Windows(TEXT, LENGTH, 40, seed=1))


def test_what_a_window_is():
    windows = Windows(TEXT, LENGTH, 7, seed=0)
    assert len(windows) == 7
    assert windows[3].keys() == {"input_ids", "labels"}
    assert windows[3]["input_ids"].dtype == torch.int64 and torch.equal(windows[3]["input_ids"], windows[3]["labels"])


def test_a_text_of_less_than_a_window():
    with pytest.raises(ValueError, match=r"^tokens: expected at least one window of 16, got 15"):
        Windows(TEXT[:15], 16, 4, seed=0)


# when it is measured


def test_the_papers_stages():
    """Appendix A.2: 0 and 1K to 10K by one, then by ten thousands."""
    thousand = [1000 * k for k in (*range(11), *range(20, 110, 10))]
    assert Run(SIZES["70M"]).stages == Run(SIZES["160M"]).stages == thousand
    assert Run(SIZES["410M"]).stages == Run(SIZES["1B"]).stages == [k for k in thousand if k <= 50_000]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, [0, 1]),
        (3, [0, 3]),
        (4, [0, 3, 4]),
        (30, list(range(0, 31, 3))),
        (31, [*range(0, 31, 3), 31]),
        (60, [*range(0, 31, 3), 60]),
        (61, [*range(0, 31, 3), 60, 61]),
        (119, [*range(0, 31, 3), 60, 90, 119]),
    ],
)
def test_the_last_update_is_always_a_stage(steps, expected):
    assert Run(replace(SIZE, steps=steps, spacing=3)).stages == expected


# what is written


def test_the_tables(whole):
    folder, _, _ = whole
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["model", "whole", *(f"{name}.parquet" for name in tiny_training.TABLES)]
    ), "checkpoints or parts are left"
    tables = tiny_training.tables(folder)
    assert list(tables["curve"].step) == list(range(1, STEPS + 1)), "a line of the curve for each update"
    for name in tiny_training.TABLES[1:]:
        assert list(tables[name].step.unique()) == [0, 4, 8], f"{name}: stages are missing or out of order"


def test_first_and_last_measurement_are_those_of_the_model(whole):
    """The model before the first update, and the model that is returned."""
    folder, trained, _ = whole
    last = model()
    last.load_state_dict(trained)
    for step, network in ((0, model()), (STEPS, last)):
        expected = measure_stage(network, HELD_OUT, tiny_training.DIRECTIONS, 3)
        for name, table in expected.items():
            got = tiny_training.tables(folder)[name].query("step == @step").drop(columns="step").reset_index(drop=True)
            pd.testing.assert_frame_equal(got, table, check_exact=True, obj=f"{name} after {step} updates")


def test_a_finished_folder_gives_the_trained_model(whole, monkeypatch):
    folder, trained, _ = whole
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(trainer, "_Trainer", lambda **_: pytest.fail("trained again"))
    again = fit(folder)
    same_weights(weights(again), trained)
    assert again.lm_head.weight is again.transformer.wte.weight and not again.training
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_model_without_norms(tmp_path):
    fit(tmp_path, "none")
    tables = tiny_training.tables(tmp_path)
    assert list(tables["loss"].step) == [0, 4, 8] and len(tables["curve"]) == STEPS
    assert all(tables[name].empty for name in ("survey", "gains", "surface"))


def test_nothing_is_printed_and_no_other_file_is_left(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        tiny_training.disturb(patch, torch.optim.AdamW, "step", 6, _interrupt)
        fit(Path("out"))
    fit(Path("out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert capfd.readouterr() == ("", ""), "Trainer talks"


def _interrupt(*_, **__):
    raise KeyboardInterrupt


def test_a_loss_that_is_not_a_number_is_shown(tmp_path):
    """Trainer would put the mean of the losses before in its place: here 0."""
    network = model()
    handle = network.register_forward_hook(_spoil)
    fit(tmp_path, network=network, held_out=())
    handle.remove()
    curve = pd.read_parquet(tmp_path / "curve.parquet")
    assert curve.loss.isna().all(), f"a diverged model with losses {curve.loss.tolist()}"


def _spoil(module, args, output):
    if module.training:
        output.loss = output.loss * math.nan


@pytest.mark.parametrize("steps", [2000, 2001])
def test_a_long_curve_has_means_over_updates(tmp_path, steps):
    """A line for two updates, of which none is lost where a training is resumed."""
    arguments = Run(replace(SIZE, steps=steps, spacing=501)).arguments(tmp_path, torch.device("cpu"), 1)
    assert arguments.logging_steps == 2
    assert arguments.save_steps % 2 == 0, "a checkpoint between two lines: the mean after it is over one update"


def test_the_curve_ends_with_the_training(tmp_path, monkeypatch):
    made = Run.arguments
    monkeypatch.setattr(Run, "arguments", lambda *args: replace(made(*args), logging_steps=3))
    fit(tmp_path / "by threes", held_out=())
    monkeypatch.undo()
    fit(tmp_path / "by one", held_out=())
    by_one, by_threes = losses(tmp_path / "by one"), losses(tmp_path / "by threes")
    expected = torch.stack([by_one[:3].mean(), by_one[3:6].mean(), by_one[6:].mean()])
    close(by_threes, expected, 1e-6, "losses", "The mean since the line before? The last two updates left out?")


# which windows, in which order


def test_every_norm_sees_the_same_windows_in_the_same_order(whole, tmp_path):
    _, _, expected = whole
    order = Windows(TEXT, LENGTH, STEPS * BATCH, seed=3)
    ids = torch.stack([order[i]["input_ids"] for i in range(STEPS * BATCH)])
    assert torch.equal(torch.cat(expected), ids), "another order than that of Windows"
    for norm in ("layer", "rms-plain", "none"):
        network = model(norm)
        seen = recorded(network)
        fit(tmp_path / norm, network=network, held_out=())
        assert len(seen) == STEPS and all(map(torch.equal, seen, expected)), f"{norm} saw other windows"


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_number_at_once_changes_nothing_but_rounding(whole, tmp_path, at_once):
    folder, trained, expected = whole
    network = model()
    seen = recorded(network)
    fit(tmp_path, network=network, held_out=(), at_once=at_once)
    assert {len(ids) for ids in seen} == {at_once}
    assert torch.equal(torch.cat(seen), torch.cat(expected)), "other windows, or another order"
    close(losses(tmp_path), losses(folder), 1e-6, "losses", "A sum instead of a mean over what is accumulated?")
    same_weights(weights(network), trained, 1e-4)


def test_a_batch_that_the_processes_cannot_share(tmp_path):
    with pytest.raises(ValueError, match=r"^batch_size: expected a multiple of the 3 processes that run, got 4$"):
        Run(SIZE).arguments(tmp_path, torch.device("cpu"), 3)
    said = r"^at_once: expected a divisor of 2, the windows of an update in each of 2 processes, got 4$"
    with pytest.raises(ValueError, match=said):
        Run(SIZE, at_once=4).arguments(tmp_path, torch.device("cpu"), 2)


def test_a_number_at_once_that_does_not_divide_the_batch(tmp_path):
    with pytest.raises(ValueError, match=r"^at_once: expected a divisor of 4, the windows of an update, got 3$"):
        fit(tmp_path / "out", at_once=3)
    assert not (tmp_path / "out").exists()


def test_the_seed_decides(whole, tmp_path):
    network = model()
    seen = recorded(network)
    fit(tmp_path, network=network, held_out=(), seed=4)
    assert not torch.equal(torch.cat(seen), torch.cat(whole[2]))


# each update


def by_hand(network, batches, rate, decay):
    """Losses and rates of AdamW by its formula, on gradients of a loss by its formula."""
    parameters, steps = list(network.parameters()), len(batches)
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    warmup, found, rates, lengths = min(2000, max(1, steps // 10)), [], [], []
    for step, ids in enumerate(batches):
        logits = network(ids).logits[:, :-1]
        chosen = logits.gather(-1, ids[:, 1:, None])[..., 0]
        loss = (logits.exp().sum(-1).log() - chosen).sum() / (BATCH * (LENGTH - 1))
        gradients = torch.autograd.grad(loss, parameters)
        length = sum(g.square().sum() for g in gradients).sqrt()
        if step < warmup:
            now = rate * (step + 1) / warmup
        else:
            now = rate * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / (steps - warmup)))
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                g = g * min(1.0, 1 / (length + 1e-6))
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.95).add_(0.05 * g * g)
                if p.dim() > 1:
                    p.mul_(1 - now * decay)
                ahead, spread = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.95 ** (step + 1))
                p.sub_(now * ahead / (spread.sqrt() + 1e-8))
        found.append(float(loss.detach()))
        rates.append(now)
        lengths.append(float(length))
    return found, rates, lengths


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_training_is_what_its_formulas_say(tmp_path, norm):
    """20 updates, so that the warm-up has two, and gradients that are clipped; in float64."""
    size = replace(SIZE, steps=20)
    networks = [model(norm, size).double() for _ in range(3)]
    for network in networks:
        network.transformer.wte.weight.data *= 20  # gradients longer than 1
    order = Windows(TEXT, LENGTH, 20 * BATCH, seed=3)
    batches = [torch.stack([order[4 * k + i]["input_ids"] for i in range(4)]) for k in range(20)]
    expected, rates, lengths = by_hand(networks[0], batches, size.rate, 0.1)
    assert min(lengths) < 1 < max(lengths), f"clipping makes no difference, or all of it: {lengths}"
    fit(tmp_path, network=networks[1], held_out=(), size=size, decay=0.1)
    curve = pd.read_parquet(tmp_path / "curve.parquet")
    loop = train(networks[2], batches, 20, size.rate)
    for got, truth, tol, what, suspects in (  # transformers' loss is float32, whatever the model is
        (loop, expected, 1e-5, "losses of train", "β of Adam? Decay of gains?"),
        (curve.loss, expected, 1e-5, "losses", "A mean over L instead of L − 1?"),
        (curve.rate, rates, 1e-12, "rates", "The rate of the update after?"),
        (curve.grad_norm, lengths, 1e-5, "norms of gradients", "After the clipping?"),
    ):
        close(torch.tensor(got, dtype=torch.float64), torch.tensor(truth, dtype=torch.float64), tol, what, suspects)
    for got, what in ((networks[1], "fit_and_measure"), (networks[2], "train")):
        for (name, p), q in zip(got.named_parameters(), networks[0].parameters(), strict=True):
            close(p, q, 1e-5, f"{name} of {what}", "Decay? Clipping? Warm-up? Cosine? ε of Adam?")


def test_measuring_changes_nothing(whole, tmp_path):
    """Bit for bit: neither the model nor a random number is touched."""
    folder, trained, seen = whole
    network = model()
    again = recorded(network)
    fit(tmp_path, network=network, held_out=())
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "curve.parquet"), pd.read_parquet(folder / "curve.parquet"), check_exact=True
    )
    same_weights(weights(network), trained)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.parquet", "model", "whole"]
    assert len(again) == len(seen) and all(map(torch.equal, again, seen))


# precision and device


def test_mixed_precision(whole, tmp_path):
    fit(tmp_path, precision="bf16")
    got, expected = losses(tmp_path), losses(whole[0])
    off = float((got - expected).abs().max())
    assert 0 < off < 0.05, f"losses in bf16 are off by {off}"
    assert {p.dtype for p in fit(tmp_path).parameters()} == {torch.float32}


def test_what_a_cpu_cannot_do_is_refused(tmp_path):
    """Else it would train in float32, and the provenance would say fp16."""
    with pytest.raises(ValueError, match=r"^precision: expected 'no' or 'bf16' on a CPU, got 'fp16'"):
        fit(tmp_path / "out", precision="fp16")
    assert not (tmp_path / "out").exists()


# a kill


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folders of a training that nobody disturbed, and of those that were killed and begun again."""
    into = tmp_path_factory.mktemp("killed")
    library = str(Path(ng.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": library, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    command = [sys.executable, tiny_training.__file__, str(into)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return into


LEFT = {
    "before the first checkpoint": [],
    "in the middle": ["checkpoint-4"],
    "after the weights of a checkpoint": ["checkpoint-4", "checkpoint-6"],
    "while an old checkpoint is removed": ["checkpoint-4", "checkpoint-6"],
    "after the last checkpoint": ["checkpoint-8"],
    "while tables are written": ["checkpoint-8", "curve.parquet"],
    "before the clearing": ["checkpoint-8", "curve.parquet", "model"],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", KILLED)
def test_a_kill_leaves_no_trace(killed, case):
    """Curve, measurements and weights, bit for bit."""
    left = (killed / f"{case}.txt").read_text().splitlines()
    assert [name for name in left if name.startswith("checkpoint-") or name in ("curve.parquet", "model")] == LEFT[case]
    same_results(killed / case, killed / "undisturbed")
    same_weights(*(torch.load(killed / folder / "weights.pt") for folder in (case, "undisturbed")))
    for folder in (killed / case, killed / "undisturbed"):
        kept = [path.name for path in folder.iterdir() if not path.name.endswith(".part")]
        assert sorted(kept) == sorted(
            ["model", "weights.pt", "whole", *(f"{name}.parquet" for name in tiny_training.TABLES)]
        )


@pytest.mark.parametrize(("first", "updates"), [(2, STEPS), (6, 4), (8, 2)])
def test_what_is_done_is_not_done_again(whole, tmp_path, first, updates):
    """Stopped in that update, the training goes on behind the last checkpoint, with the windows that come there."""
    folder, trained, expected = whole
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        tiny_training.disturb(patch, torch.optim.AdamW, "step", first, _interrupt)
        fit(tmp_path)
    network = model()
    seen = recorded(network)
    fit(tmp_path, network=network)
    assert len(seen) == updates, f"{len(seen)} updates"
    assert all(map(torch.equal, seen, expected[-updates:])), "other windows than in an undisturbed training"
    same_results(tmp_path, folder)
    same_weights(weights(network), trained)


# damage


def stopped(folder, at=8):
    """A training that was stopped in an update: its last checkpoint is that of two updates before."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        tiny_training.disturb(patch, torch.optim.AdamW, "step", at, _interrupt)
        fit(folder)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "half of the weights": lambda folder: cut(folder / "model.safetensors"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "half of the optimizer": lambda folder: cut(folder / "optimizer.pt"),
    "no optimizer": lambda folder: (folder / "optimizer.pt").unlink(),
    "half of the state": lambda folder: cut(folder / "trainer_state.json"),
    "half of the random state": lambda folder: cut(folder / "rng_state.pth"),
    "no random state": lambda folder: (folder / "rng_state.pth").unlink(),
    "another rate": lambda folder: cut(folder / "scheduler.pt"),
    "half of the mark": lambda folder: cut(folder / "whole"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_says_what_to_delete(whole, tmp_path, damage):
    stopped(tmp_path)
    DAMAGE[damage](tmp_path / "checkpoint-6")
    with pytest.raises(OSError, match=r"^out: .*checkpoint-6 is damaged \(.*\); delete it and run the same command$"):
        fit(tmp_path)
    if damage == "half of the weights":
        shutil.rmtree(tmp_path / "checkpoint-6")
        fit(tmp_path)
        same_results(tmp_path, whole[0])


def test_the_whole_checkpoint_before_a_damaged_one_is_taken(whole, tmp_path):
    folder, trained, _ = whole
    stopped(tmp_path, 6)
    shutil.copytree(tmp_path / "checkpoint-4", tmp_path / "kept")
    stopped(tmp_path, 4)
    shutil.copytree(tmp_path / "kept", tmp_path / "checkpoint-4")
    shutil.rmtree(tmp_path / "kept")
    cut(tmp_path / "checkpoint-6" / "optimizer.pt")
    network = model()
    seen = recorded(network)
    with pytest.warns(UserWarning, match=r"checkpoint-6 is damaged; going on from the one before it"):
        fit(tmp_path, network=network)
    assert len(seen) == 4, "not from the checkpoint after 4 updates"
    same_results(tmp_path, folder)
    same_weights(weights(network), trained)


@pytest.mark.parametrize("damage", [cut, Path.unlink], ids=["cut off", "gone"])
def test_a_damaged_table_says_what_to_delete(whole, tmp_path, damage):
    stopped(tmp_path)
    damage(tmp_path / "loss-0000004.parquet")
    said = (
        rf"^out: {tmp_path} is damaged \(loss-0000004.parquet: .*\); delete it and run the same command, which trains"
    )
    with pytest.raises(OSError, match=said):
        fit(tmp_path)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_damaged_model_says_what_to_delete(tmp_path, norm):
    fit(tmp_path / "out", norm, held_out=())
    (weights_file,) = (tmp_path / "out" / "model").glob("*.safetensors")
    cut(weights_file)
    with pytest.raises(
        OSError, match=r"^out: .*out is damaged \(.*\); delete it and run the same command, which trains"
    ):
        fit(tmp_path / "out", norm)


def test_a_layer_norm_twin_without_a_weight_is_not_drawn_anew(tmp_path):
    fit(tmp_path, "layer", held_out=())
    path = tmp_path / "model" / "model.safetensors"
    save_file({k: v for k, v in load_file(path).items() if "ln_f.bias" not in k}, path, metadata={"format": "pt"})
    with pytest.raises(OSError, match=r"^out: .*its weights are not those .*missing: transformer.ln_f.bias"):
        fit(tmp_path, "layer")


# a full disk


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "at", "left"),
    [
        (pd.DataFrame, "to_parquet", 1, []),
        (pd.DataFrame, "to_parquet", 10, ["checkpoint-6"]),
        (trainer.Trainer, "save_model", 3, ["checkpoint-4"]),
        (trainer.Trainer, "_save_optimizer_and_scheduler", 3, ["checkpoint-4"]),
        (trainer.Trainer, "_save_rng_state", 1, []),
        (trainer, "_write", 1, ["checkpoint-8"]),
    ],
    ids=["first table", "a table", "weights", "optimizer", "random state", "end"],
)
def test_a_full_disk_leaves_no_trace(whole, tmp_path, owner, name, at, left):
    """The system itself refuses to write: each library has an error of its own for it."""
    folder, trained, _ = whole

    def full(works, *args, **kwargs):
        with tiny_training.limited():
            works(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError) as caught:
        tiny_training.disturb(patch, owner, name, at, full)
        fit(tmp_path)
    assert caught.value.strerror, "what surrounds a training knows an error of the file system by its strerror"
    assert [path.parent.name for path in tmp_path.glob("checkpoint-*/whole")] == left
    again = fit(tmp_path)
    same_results(tmp_path, folder)
    same_weights(weights(again), trained)
