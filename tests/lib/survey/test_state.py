"""A survey's state: of fixed size, merged, saved, loaded, resumed, and never half-written."""

import os
from pathlib import Path

import normgeom as ng
import numpy as np
import pytest
import torch
from normgeom.survey import survey as module
from safetensors import safe_open
from safetensors.torch import save_file
from survey_truth import assert_same_state, copied, same_tables
from tiny_models import tiny, token_ids

BATCHES = [token_ids(3, 11, seed=i) for i in range(5)]
DIRECTIONS = ["uniform", "signs_a", "random_a"]
SETTINGS = dict(directions=DIRECTIONS, seed=3)


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2")


def fresh(model, **changes):
    return ng.Survey(model, **{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def whole(model):
    return fresh(model).run(BATCHES, progress=False)


@pytest.fixture
def passes(model):
    """One entry for each run of the model."""
    counted = []
    handle = model.register_forward_hook(lambda *_: counted.append(1))
    yield counted
    handle.remove()


def stopping(batches, after):
    """What a reader sees whose run is stopped when it asks for the next batch."""
    yield from batches[:after]
    raise KeyboardInterrupt


def stopped(model, after, path=None, batches=BATCHES):
    s = fresh(model)
    with pytest.raises(KeyboardInterrupt):
        s.run(stopping(batches, after), progress=False, checkpoint=path)
    return s


@pytest.fixture
def held(model, tmp_path):
    """A checkpoint of three batches."""
    path = tmp_path / "s.safetensors"
    stopped(model, 3, path)
    return path


# merged, saved, loaded


@pytest.mark.parametrize("cut", range(6))
def test_two_surveys_merged_are_one(model, whole, cut):
    a, b = (fresh(model).run(part, progress=False) for part in (BATCHES[:cut], BATCHES[cut:]))
    digests, before, reverse = {a.digest, b.digest, whole.digest}, copied(b), copied(b).merge(a)
    assert a.merge(b) is a
    assert_same_state(b, before)
    assert (a.tokens, a.batches) == (whole.tokens, whole.batches) == (165, 5)
    same_tables(a.table(), whole.table())
    assert a.digest == reverse.digest and a.digest not in digests, "of the same batches in either order, not in one run"


def test_a_file_holds_the_whole_survey(whole, tmp_path):
    for _ in range(2):
        whole.save(tmp_path / "s")
        loaded = ng.Survey.load(tmp_path / "s")
        assert_same_state(loaded, whole)
        for name in ("directions", "seed", "sites", "fingerprint"):
            assert getattr(loaded, name) == getattr(whole, name)
        whole = loaded
    assert [p.name for p in tmp_path.iterdir()] == ["s"], "a suffix was added"


OTHERS = {  # which attribute tells, and the other survey
    "seed": ("seed", lambda model: fresh(model, seed=1)),
    "directions": ("directions", lambda model: fresh(model, directions=DIRECTIONS[:2])),
    "weights": ("fingerprint", lambda model: fresh(tiny("gpt2", seed=1))),
    "sites": ("sites", lambda model: fresh(tiny("llama"))),
}


@pytest.mark.parametrize(("name", "make"), OTHERS.values(), ids=OTHERS)
def test_what_does_not_belong_together(model, passes, held, name, make):
    s, other = fresh(model).run(BATCHES[:1], progress=False), make(model)
    before, content = copied(s), held.read_bytes()
    with pytest.raises(ValueError, match=rf"^other: expected the same {name}, .*, got "):
        s.merge(other)
    assert_same_state(s, before)
    passes.clear()
    foreign = f"^checkpoint: {held} is of another survey: expected the same {name}, .*, got .*; delete it or name"
    with pytest.raises(ValueError, match=foreign):
        other.run(BATCHES, progress=False, checkpoint=held)
    assert not passes and held.read_bytes() == content


def test_what_the_digest_sees(model):
    """The batches in their order, however the runs were cut; not what they are called, nor where they lie."""

    def digest(*runs):
        s = ng.Survey(model, ["uniform"])
        for run in runs:
            s.run(run, progress=False)
        return s.digest

    a, b = BATCHES[:2]
    ones = torch.ones(3, 11)
    assert digest([a, b]) == digest([a], [b]) == digest([dict(input_ids=a), b.clone().T.contiguous().T])
    others = [digest(), digest([a]), digest([b, a]), digest([a, a]), digest([torch.cat([a, b])])]
    others += [digest([dict(input_ids=a, attention_mask=mask), b]) for mask in (ones, ones.bool())]
    others += [digest([dict(input_ids=a, use_cache=flag), b]) for flag in (True, False)]
    assert len({digest([a, b]), *others}) == 1 + len(others), "two texts, one digest"


# damaged and foreign files


def with_another_format(path):
    with safe_open(path, "pt") as file:
        names, metadata = file.keys(), file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in names}
    save_file(tensors, path, metadata | dict(digest=module._digest("normgeom survey 5" + metadata["about"], tensors)))


FILES = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"tokens,angle\n"),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "numpy's": lambda path: np.savez(open(path, "wb"), x=np.zeros(3)),  # noqa: SIM115
    "other tensors": lambda path: save_file({"x": torch.zeros(3)}, path),
    "another format": with_another_format,
}


@pytest.mark.parametrize("spoil", FILES.values(), ids=FILES)
def test_a_file_that_is_no_state_is_named_and_left_alone(model, passes, held, spoil):
    spoil(held)
    content, s = held.read_bytes(), fresh(model)
    passes.clear()
    for use in (ng.Survey.load, lambda path: s.run(BATCHES, progress=False, checkpoint=path)):
        with pytest.raises(ValueError, match=rf"^path: {held} is not the state of a survey, is damaged or of another"):
            use(held)
    assert held.read_bytes() == content and not passes and s.batches == 0


def test_any_byte_of_a_file_may_be_damaged(held):
    good = held.read_bytes()
    for place in [*range(0, 200, 3), *range(200, len(good), len(good) // 100)]:
        held.write_bytes(good[:place] + bytes([good[place] ^ 255]) + good[place + 1 :])
        with pytest.raises(ValueError, match="is not the state of a survey"):
            ng.Survey.load(held)


# stopped and resumed


@pytest.mark.parametrize("after", range(6))
def test_a_resumed_run_is_an_undisturbed_one(model, whole, passes, tmp_path, after):
    """To the last bit, and nothing is measured twice."""
    path = tmp_path / "s"
    first = stopped(model, after, path)
    assert (first.batches, path.exists()) == (after, after > 0)
    if after:
        assert_same_state(ng.Survey.load(path), first)
    s = fresh(model)
    passes.clear()
    assert s.run(iter(BATCHES), progress=False, checkpoint=str(path)) is s
    assert len(passes) == 5 - after, "batches of the checkpoint are measured again"
    for got in (s, ng.Survey.load(path)):
        assert_same_state(got, whole)
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_the_state_is_saved_after_the_first_batch_then_once_a_minute(model, tmp_path, monkeypatch):
    path, saved, clock = tmp_path / "s", [], [0.0]

    def watched():
        for batch in BATCHES:
            saved.append(ng.Survey.load(path).batches if path.exists() else 0)
            yield batch
            clock[0] += 25

    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    fresh(model).run(watched(), progress=False, checkpoint=path)
    assert saved == [0, 1, 1, 1, 4]
    assert ng.Survey.load(path).batches == 5, "at the end of the run all of it is saved"


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_error_in_the_middle_of_a_batch(whole, tmp_path, checkpoint):
    """The state holds whole batches; a norm's hooks and the mode are as before."""
    model, path = tiny("gpt2").train(), tmp_path / "s" if checkpoint else None
    s, calls = fresh(model), []

    def fail(*_):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")

    handle = model.transformer.h[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        s.run(BATCHES, progress=False, checkpoint=path)
    handle.remove()
    assert all(m.training and not m._forward_hooks for m in model.modules())
    assert_same_state(s, fresh(model).run(BATCHES[:2], progress=False))
    if checkpoint:
        assert_same_state(ng.Survey.load(path), s)
        assert_same_state(fresh(model).run(BATCHES, progress=False, checkpoint=path), whole)


def test_a_resumed_survey_goes_on_and_one_with_batches_begins_a_checkpoint(model, whole, held, tmp_path):
    s = fresh(model).run(BATCHES[:3], progress=False, checkpoint=held).run(BATCHES[3:], progress=False)
    same_tables(s.table(), whole.table())
    assert s.batches == 5 and ng.Survey.load(held).batches == 3, "saved where nobody asked for it"
    fresh(model).run(BATCHES[:2], progress=False).run(BATCHES[2:4], progress=False, checkpoint=tmp_path / "t")
    assert_same_state(fresh(model).run(BATCHES, progress=False, checkpoint=tmp_path / "t"), whole)


HOLDS = "{held} holds other batches than these"
BAD = {
    "another text": (fresh, [*BATCHES[:2], BATCHES[3]], HOLDS),
    "another order": (fresh, [BATCHES[1], BATCHES[0], *BATCHES[2:]], HOLDS),
    "cut otherwise": (fresh, [part for batch in BATCHES for part in batch.split(2)], HOLDS),
    "too few": (fresh, BATCHES[:2], "{held} holds 3 batches, more than these 2"),
    "none": (fresh, [], "{held} holds 3 batches, more than these 0"),
    "begun": (
        lambda m: fresh(m).run(BATCHES[:1], progress=False),
        BATCHES,
        "{held} exists, and this survey holds batc",
    ),
}


@pytest.mark.parametrize(("make", "batches", "message"), BAD.values(), ids=BAD)
def test_a_checkpoint_that_is_refused_is_left_alone(model, passes, held, make, batches, message):
    s, content = make(model), held.read_bytes()
    passes.clear()
    with pytest.raises(ValueError, match=f"^checkpoint: {message.format(held=held)}"):
        s.run(batches, progress=False, checkpoint=held)
    assert not passes and held.read_bytes() == content and os.listdir(held.parent) == [held.name]


def test_a_survey_from_a_file_measures_no_more(held):
    with pytest.raises(ValueError, match=r"^model: a survey loaded from a file holds results only"):
        ng.Survey.load(held).run(BATCHES, progress=False)


@pytest.mark.parametrize("fails", [1, 3])
def test_a_full_disk_keeps_the_file_of_the_batch_before(model, whole, tmp_path, monkeypatch, fails):
    path, saves, write = tmp_path / "s", [], Path.write_bytes

    def filling(file, content):
        saves.append(1)
        write(file, content[:100])
        if len(saves) >= fails:
            raise OSError(28, "No space left on device")
        write(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", filling)
        patch.setattr(module, "SAVE_EVERY", 0)
        s = fresh(model)
        with pytest.raises(OSError, match="No space left"):
            s.run(BATCHES, progress=False, checkpoint=path)
    assert s.batches == fails, "the survey in memory holds the batch that it could not save"
    assert os.listdir(tmp_path) == ["s"][: fails - 1], "a part file was left behind"
    if fails > 1:
        assert ng.Survey.load(path).batches == fails - 1
    assert_same_state(fresh(model).run(BATCHES, progress=False, checkpoint=path), whole)
