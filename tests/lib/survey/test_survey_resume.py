"""A survey with a checkpoint: stopped anywhere and started again, it is the survey of an undisturbed run."""

import os
from pathlib import Path

import normgeom as ng
import numpy as np
import pytest
import torch
from normgeom.survey import state
from survey_truth import assert_same_state, frozen, same_tables, survey
from tiny_models import tiny, token_ids

BATCHES = [token_ids(3, 11, seed=i) for i in range(5)]
SETTINGS = dict(
    directions=["uniform", "random_a", "signs_a", "matched_a"],
    seed=3,
    pilot=BATCHES[0],
    vectors=dict(v=torch.arange(32.0)),
)


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2")


@pytest.fixture(scope="module")
def whole(model):
    return survey(model, BATCHES, **SETTINGS)


@pytest.fixture
def passes(model):
    """One entry for each run of the model."""
    counted = []
    handle = model.register_forward_hook(lambda *_: counted.append(1))
    yield counted
    handle.remove()


def fresh(model, **changes):
    return ng.Survey(model, **{**SETTINGS, **changes})


def stopping(batches, after):
    """What a reader sees whose run is stopped when it asks for the next batch."""
    yield from batches[:after]
    raise KeyboardInterrupt


def stopped(model, after, path, batches=BATCHES):
    s = fresh(model)
    with pytest.raises(KeyboardInterrupt):
        s.run(stopping(batches, after), progress=False, checkpoint=path)
    return s


@pytest.fixture
def held(model, tmp_path):
    """A checkpoint of three batches."""
    path = tmp_path / "s.npz"
    stopped(model, 3, path)
    return path


@pytest.mark.parametrize("after", range(6))
def test_a_resumed_run_is_an_undisturbed_one(model, whole, passes, tmp_path, after):
    """To the last bit, and nothing is measured twice."""
    path = tmp_path / "s.npz"
    first = stopped(model, after, path)
    assert (first.batches, path.exists()) == (after, after > 0)
    if after:
        assert_same_state(ng.Survey.load(path), first)
    s = fresh(model)
    passes.clear()
    assert s.run(BATCHES, progress=False, checkpoint=path) is s
    assert len(passes) == 5 - after, "batches of the checkpoint are measured again"
    for got in (s, ng.Survey.load(path)):
        assert_same_state(got, whole)
        assert got.table().equals(whole.table())
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


def test_stopped_again_and_again(model, whole, passes, tmp_path):
    passes.clear()
    for after in (1, 1, 3, 4):
        stopped(model, after, tmp_path / "s.npz")
    s = fresh(model).run(iter(BATCHES), progress=False, checkpoint=str(tmp_path / "s.npz"))
    assert_same_state(s, whole)
    assert len(passes) == 5 + 5 * 2, "five batches, and for each of five surveys its search and its pilot"


@pytest.mark.parametrize("seconds, seen", [(0, [0, 1, 2, 3, 4]), (0.025, [0, 1, 1, 1, 4]), (1, [0, 1, 1, 1, 1])])
def test_saving_takes_a_hundredth_of_the_time(model, tmp_path, monkeypatch, seconds, seen):
    """A batch takes a second, saving ``seconds``; after the first it waits for a hundred times as long."""
    path, held, clock, save = tmp_path / "s.npz", [], [0.0], ng.Survey.save

    def slow(survey, path):
        save(survey, path)
        clock[0] += seconds

    def watched():
        for batch in BATCHES:
            held.append(ng.Survey.load(path).batches if path.exists() else 0)
            yield batch
            clock[0] += 1

    monkeypatch.setattr(state.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(ng.Survey, "save", slow)
    fresh(model).run(watched(), progress=False, checkpoint=path)
    assert held == seen
    assert ng.Survey.load(path).batches == 5, "at the end of the run all of it is saved"


def test_an_error_in_the_middle_of_a_batch(whole, tmp_path):
    model, path = tiny("gpt2"), tmp_path / "s.npz"
    s, calls = fresh(model), []

    def fail(*_):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")

    handle = model.transformer.h[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        s.run(BATCHES, progress=False, checkpoint=path)
    handle.remove()
    assert s.batches == 2
    assert_same_state(ng.Survey.load(path), s)
    assert_same_state(fresh(model).run(BATCHES, progress=False, checkpoint=path), whole)


def test_what_is_excluded_is_resumed_and_reported(tmp_path):
    model, path = tiny("gpt2"), tmp_path / "s.npz"
    s, spoiled = ng.Survey(model), ng.Survey(model)
    handle = model.transformer.ln_f.register_forward_pre_hook(lambda m, args: (args[0] * torch.nan,))
    with pytest.warns(UserWarning, match=r"^66 vectors with NaN or Inf entries were left out"):
        spoiled.run(BATCHES[:1], progress=False, checkpoint=path)
    handle.remove()
    with pytest.warns(UserWarning, match=r"^66 vectors with NaN or Inf entries were left out"):
        s.run(BATCHES, progress=False, checkpoint=path)
    assert s.excluded()["nonfinite"].sum() == 66


def test_a_finished_run_started_again(model, whole, passes, tmp_path):
    path = tmp_path / "s.npz"
    fresh(model).run(BATCHES, progress=False, checkpoint=path)
    before, s = path.read_bytes(), fresh(model)
    passes.clear()
    assert_same_state(s.run(BATCHES, progress=False, checkpoint=path), whole)
    assert not passes and path.read_bytes() == before


def test_a_resumed_survey_goes_on(model, held):
    """It is a survey like any other: it measures, merges, and saves where it is told to."""
    s = fresh(model).run(BATCHES[:3], progress=False, checkpoint=held)
    s.run(BATCHES[3:], progress=False)
    same_tables(s.table(), survey(model, BATCHES, **SETTINGS).table())
    assert s.batches == 5 and ng.Survey.load(held).batches == 3, "saved where nobody asked for it"


def test_a_survey_with_batches_begins_a_checkpoint(model, whole, tmp_path):
    """The file holds what was measured before, too; ``batches`` of a resumed run begin with it."""
    path = tmp_path / "s.npz"
    survey(model, BATCHES[:2], **SETTINGS).run(BATCHES[2:4], progress=False, checkpoint=path)
    assert_same_state(fresh(model).run(BATCHES, progress=False, checkpoint=path), whole)


def test_a_checkpoint_before_any_batch(model, whole, tmp_path):
    fresh(model).save(tmp_path / "s.npz")
    assert_same_state(fresh(model).run(BATCHES, progress=False, checkpoint=tmp_path / "s.npz"), whole)


def test_an_empty_batch_is_a_batch(model, tmp_path):
    """Where a run stopped is counted in batches."""
    path, empty = tmp_path / "s.npz", torch.zeros(0, 5, dtype=torch.int64)
    given = [BATCHES[0], empty, BATCHES[1]]
    stopped(model, 2, path, given)
    s = fresh(model).run(given, progress=False, checkpoint=path)
    assert (s.batches, s.tokens) == (3, 66)
    same_tables(s.table(), survey(model, BATCHES[:2], **SETTINGS).table())


def refused(s, batches, path, message, passes=()):
    """The file and the survey are as before; the model has not run."""
    before, content, runs = frozen(s), path.read_bytes(), len(passes)
    with pytest.raises(ValueError, match=message):
        s.run(batches, progress=False, checkpoint=path)
    assert path.read_bytes() == content, "the file has changed"
    assert_same_state(s, before)
    assert len(passes) == runs, "refused after batches had been measured"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


OTHERS = {
    "text": [BATCHES[0], BATCHES[1], BATCHES[3], BATCHES[3], BATCHES[4]],
    "first batch": [BATCHES[1], BATCHES[1], BATCHES[2], BATCHES[3], BATCHES[4]],
    "order": [BATCHES[1], BATCHES[0], *BATCHES[2:]],
    "one token": [BATCHES[0], BATCHES[1], BATCHES[2] + (torch.arange(11) == 10), *BATCHES[3:]],
    "cut": [b for whole in BATCHES for b in whole.split(2)],
    "shape": [b.reshape(11, 3) for b in BATCHES],
    "mask": [dict(input_ids=b, attention_mask=(torch.arange(11) < 10).expand(3, -1).long()) for b in BATCHES],
}


@pytest.mark.parametrize("batches", OTHERS.values(), ids=OTHERS)
def test_other_batches_are_refused(model, passes, held, batches):
    refused(fresh(model), batches, held, rf"^checkpoint: {held} holds other batches than these", passes)


SURVEYS = {
    "seed": (lambda: dict(seed=4), "seed"),
    "fewer directions": (lambda: dict(directions=["uniform", "matched_a"]), "directions"),
    "order of directions": (lambda: dict(directions=SETTINGS["directions"][::-1]), "directions"),
    "vector": (lambda: dict(vectors=dict(v=torch.ones(32))), "vectors or pilot"),
    "name of the vector": (lambda: dict(vectors=dict(w=SETTINGS["vectors"]["v"])), "directions"),
    "pilot": (lambda: dict(pilot=BATCHES[1]), "vectors or pilot"),
}


@pytest.mark.parametrize(("changes", "called"), SURVEYS.values(), ids=SURVEYS)
def test_a_checkpoint_of_other_settings_is_refused(model, held, changes, called):
    message = f"^checkpoint: a survey with another {called}: expected .*, got "
    refused(fresh(model, **changes()), BATCHES, held, message)


MODELS = {
    "weights": (lambda: tiny("gpt2", seed=1), "fingerprint"),
    "dtype": (lambda: tiny("gpt2").double(), "fingerprint"),
    "depth": (lambda: tiny("gpt2", n_layer=1), "sites"),
    "family": (lambda: tiny("llama"), "sites"),
}


@pytest.mark.parametrize(("make", "called"), MODELS.values(), ids=MODELS)
def test_a_checkpoint_of_another_model_is_refused(held, make, called):
    refused(fresh(make()), BATCHES, held, f"^checkpoint: a survey with another {called}: expected .*, got ")


@pytest.mark.parametrize("given", [0, 1, 2])
def test_a_checkpoint_longer_than_the_batches_is_refused(model, passes, held, given):
    message = rf"^checkpoint: {held} holds 3 batches, got {given}"
    refused(fresh(model), BATCHES[:given], held, message, passes)


def test_a_survey_with_batches_of_its_own_takes_up_no_checkpoint(model, held):
    message = rf"^checkpoint: {held} exists, and this survey holds batches already"
    refused(survey(model, BATCHES[:1], **SETTINGS), BATCHES, held, message)


DAMAGES = {
    "empty": lambda good: b"",
    "cut short": lambda good: good[:-100],
    "one byte": lambda good: good[:2000] + bytes([good[2000] ^ 1]) + good[2001:],
    "text": lambda good: b"tokens,angle\n",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_refused(model, passes, held, damage):
    held.write_bytes(damage(held.read_bytes()))
    refused(fresh(model), BATCHES, held, rf"^path: {held} is not the state of a survey", passes)


def test_a_survey_from_a_file_resumes_nothing(held):
    loaded = ng.Survey.load(held)
    refused(loaded, BATCHES, held, "^model: a survey loaded from a file holds results only")


@pytest.mark.parametrize("fails", [1, 3])
def test_a_full_disk_keeps_the_file_of_the_batch_before(model, whole, tmp_path, monkeypatch, fails):
    path, saves, save = tmp_path / "s.npz", [], np.savez_compressed

    def filling(file, **arrays):
        saves.append(1)
        if len(saves) == fails:
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        save(file, **arrays)

    monkeypatch.setattr(np, "savez_compressed", filling)
    monkeypatch.setattr(state, "SPARING", 0)
    s = fresh(model)
    with pytest.raises(OSError, match="No space left"):
        s.run(BATCHES, progress=False, checkpoint=path)
    assert s.batches == fails, "the survey in memory holds the batch that it could not save"
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"][: fails - 1], "a part file was left behind"
    if fails > 1:
        assert ng.Survey.load(path).batches == fails - 1
    assert_same_state(fresh(model).run(BATCHES, progress=False, checkpoint=path), whole)


@pytest.mark.parametrize("place", ["no/such/folder/s.npz", "."])
def test_a_checkpoint_that_cannot_be_written(model, tmp_path, place):
    with pytest.raises(OSError):
        fresh(model).run(BATCHES, progress=False, checkpoint=tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_be_a_string_or_not(model, tmp_path):
    for path in (str(tmp_path / "a.npz"), tmp_path / "b.npz", os.path.relpath(tmp_path / "c.npz")):
        fresh(model).run(BATCHES[:1], progress=False, checkpoint=path)
        assert ng.Survey.load(path).batches == 1
    assert {p.name for p in Path(tmp_path).iterdir()} == {"a.npz", "b.npz", "c.npz"}, "a suffix was added"
