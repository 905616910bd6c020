"""A survey's state: of fixed size, merged, saved, loaded, and never half-written."""

import zipfile

import normgeom as ng
import numpy as np
import pytest
import torch
from normgeom.survey.tally import Tally
from survey_truth import assert_same_state, frozen, same_tables, survey
from tiny_models import tiny, token_ids

BATCHES = [token_ids(3, 11, seed=i) for i in range(5)]


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2")


@pytest.fixture(scope="module")
def whole(model):
    return survey(model, BATCHES)


def state_bytes(s):
    return sum(t.numel() * t.element_size() for tally in s._tallies for t in vars(tally).values())


@pytest.mark.parametrize("cut", range(6))
def test_two_surveys_merged_are_one(model, whole, cut):
    merged = survey(model, BATCHES[:cut]).merge(survey(model, BATCHES[cut:]))
    assert merged.tokens == whole.tokens == 165
    same_tables(merged.table(), whole.table())


def test_merging_changes_the_first_and_returns_it(model, whole):
    a, b = survey(model, BATCHES[:2]), survey(model, BATCHES[2:])
    before = frozen(b)
    assert a.merge(b) is a
    assert_same_state(b, before)
    same_tables(a.table(), whole.table())


def test_pieces_saved_loaded_and_merged_are_one(model, whole, tmp_path):
    for i, batch in enumerate(BATCHES):
        survey(model, [batch]).save(tmp_path / f"{i}.npz")
    merged = ng.Survey.load(tmp_path / "0.npz")
    for i in range(1, 5):
        merged.merge(ng.Survey.load(tmp_path / f"{i}.npz"))
    same_tables(merged.table(), whole.table())
    assert merged.tokens == whole.tokens


def test_a_resumed_survey(model, whole, tmp_path):
    survey(model, BATCHES[:3]).save(tmp_path / "s.npz")
    resumed = ng.Survey(model).merge(ng.Survey.load(str(tmp_path / "s.npz"))).run(BATCHES[3:], progress=False)
    same_tables(resumed.table(), whole.table())


def test_a_file_holds_the_whole_survey(whole, tmp_path):
    whole.save(tmp_path / "s.npz")
    loaded = ng.Survey.load(tmp_path / "s.npz")
    assert_same_state(loaded, whole)
    assert (loaded.directions, loaded.seed, loaded.sites) == (whole.directions, whole.seed, whole.sites)
    same_tables(loaded.table(), whole.table(), tol=0, quantiles=0)
    assert loaded.excluded().equals(whole.excluded())
    loaded.save(tmp_path / "again.npz")
    assert_same_state(ng.Survey.load(tmp_path / "again.npz"), whole)


def test_excluded_vectors_survive_merging_and_saving(tmp_path):
    model = tiny("gpt2")
    s = ng.Survey(model)
    model.transformer.ln_f.register_forward_pre_hook(lambda m, args: (args[0] * torch.nan,))
    for _ in range(2):
        with pytest.warns(UserWarning, match="left out"):
            s.run([token_ids(1, 4)], progress=False)
    s.save(tmp_path / "s.npz")
    merged = s.merge(ng.Survey.load(tmp_path / "s.npz"))
    assert merged.excluded()["nonfinite"].sum() == 2 * 2 * 8


def test_a_loaded_survey_measures_no_more(whole, tmp_path):
    whole.save(tmp_path / "s.npz")
    loaded = ng.Survey.load(tmp_path / "s.npz")
    with pytest.raises(ValueError, match=r"^model: a survey loaded from a file holds results only"):
        loaded.run(BATCHES)


def test_state_and_file_do_not_grow_with_tokens(model, tmp_path):
    s = survey(model, BATCHES[:1])
    small = state_bytes(s)
    s.save(tmp_path / "small.npz")
    for _ in range(6):
        s.run([token_ids(16, 60, seed=7)], progress=False)
    s.save(tmp_path / "large.npz")
    assert s.tokens > 150 * 33
    assert state_bytes(s) == small, "the state has grown"
    names, sizes = [], []
    for file in ("small.npz", "large.npz"):
        with zipfile.ZipFile(tmp_path / file) as archive:
            names.append(archive.namelist())
            sizes.append(sum(info.file_size for info in archive.infolist()))
        assert (tmp_path / file).stat().st_size < 1_000_000, "a state takes less than 1 MB a model"
    assert names[0] == names[1]
    # the one difference: the digits of the token count, at four bytes each
    assert abs(sizes[1] - sizes[0]) < 64, "the file has grown"


def test_the_file_of_a_large_model_takes_less_than_a_megabyte(tmp_path):
    """As many norms as GPT-2 XL has, a million tokens, and angles that spread by ten degrees at each."""
    s = ng.Survey(tiny("gpt2", n_layer=48))
    assert len(s.sites) == 97
    generator, edges = np.random.default_rng(0), torch.arange(721) / 4
    for tally in s._tallies:
        middle = torch.tensor(90 + 10 * generator.standard_normal((*tally.counts.shape[:3], 1)))
        share = torch.special.ndtr((edges - middle) / 10).diff(dim=-1)
        tally.counts = torch.tensor(generator.poisson(1e6 * share))
        for name in ("count", "mean", "m2"):  # digits that nothing compresses
            setattr(tally, name, torch.tensor(generator.random(tally.mean.shape)))
    s.save(tmp_path / "s.npz")
    assert (tmp_path / "s.npz").stat().st_size < 1_000_000
    assert_same_state(ng.Survey.load(tmp_path / "s.npz"), s)


def test_the_state_does_not_grow_with_the_vocabulary_or_width():
    sizes = {state_bytes(ng.Survey(tiny("gpt2", **c))) for c in ({}, dict(vocab_size=500), dict(n_embd=64))}
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("seed", lambda: ng.Survey(tiny("gpt2"), seed=1)),
        ("directions", lambda: ng.Survey(tiny("gpt2"), directions=["uniform"])),
        ("directions", lambda: ng.Survey(tiny("gpt2"), directions=["uniform", "random_b", "random_a"])),
        ("fingerprint", lambda: ng.Survey(tiny("gpt2", seed=1))),
        ("sites", lambda: ng.Survey(tiny("llama"))),
        ("sites", lambda: ng.Survey(tiny("gpt2", n_embd=64))),
    ],
    ids=["seed", "fewer directions", "other order", "other weights", "other family", "other width"],
)
def test_merging_what_does_not_belong_together(model, tmp_path, name, make):
    s, other = survey(model, BATCHES[:1]), make()
    before = frozen(s)
    other.save(tmp_path / "other.npz")
    for stranger in (other, ng.Survey.load(tmp_path / "other.npz")):
        with pytest.raises(ValueError, match=rf"^other: a survey with another {name}: expected .*, got "):
            s.merge(stranger)
        assert_same_state(s, before)


def test_a_full_disk_leaves_the_old_file(model, whole, tmp_path, monkeypatch):
    path = tmp_path / "s.npz"
    survey(model, BATCHES[:1]).save(path)
    old = path.read_bytes()

    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", full)
        with pytest.raises(OSError, match="No space left"):
            whole.save(path)
    assert path.read_bytes() == old, "the old file is damaged"
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"], "a part file was left behind"
    whole.save(path)
    assert_same_state(ng.Survey.load(path), whole)


def test_a_full_disk_without_an_old_file_leaves_nothing(whole, tmp_path, monkeypatch):
    def full(file, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left"):
        whole.save(tmp_path / "s.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_fails_midway_leaves_the_state():
    model = tiny("gpt2").train()
    s = survey(model, BATCHES[:2])
    before, hooks = frozen(s), [len(m._forward_hooks) for m in model.modules()]

    def fail(*_):
        raise RuntimeError("out of memory")

    handle = model.transformer.h[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        s.run([BATCHES[2]], progress=False)
    handle.remove()
    assert_same_state(s, before)
    assert [len(m._forward_hooks) for m in model.modules()] == hooks, "a hook was left behind"
    assert all(m.training for m in model.modules()), "the mode was not restored"
    same_tables(s.run(BATCHES[2:], progress=False).table(), survey(model, BATCHES).table())


def test_an_interrupted_run_holds_whole_batches(model):
    def interrupted():
        yield from BATCHES[:3]
        raise KeyboardInterrupt

    s = ng.Survey(model)
    with pytest.raises(KeyboardInterrupt):
        s.run(interrupted(), progress=False)
    same_tables(s.table(), survey(model, BATCHES[:3]).table())


def test_a_batch_that_cannot_be_added_is_not_added_in_part(monkeypatch):
    """Memory may end between the first norms' sums and the last's; norms with as many directions are added at once."""
    own = dict(v=torch.arange(1.0, 9.0))
    s, calls, merged = survey(tiny("qwen3"), BATCHES[:1], vectors=own), [], Tally.merged
    before = frozen(s)

    def failing(self, other):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return merged(self, other)

    monkeypatch.setattr(Tally, "merged", failing)
    with pytest.raises(MemoryError):
        s.run(BATCHES[1:2], progress=False)
    assert_same_state(s, before)


def test_merging_counts_batches_and_marks_the_digest(model, whole):
    """Two surveys merged are of the same batches in either order; not of the same in one run."""
    a, b = (survey(model, part) for part in (BATCHES[:2], BATCHES[2:]))
    digests = {a.digest, b.digest, whole.digest}
    one, other = frozen(a).merge(b), frozen(b).merge(a)
    assert one.batches == other.batches == 5
    assert one.digest == other.digest and one.digest not in digests


def test_what_the_digest_sees(model):
    """The batches in their order, however the runs were cut; not what they are called, nor where they lie."""

    def digest(*runs):
        s = ng.Survey(model, ["uniform"])
        for run in runs:
            s.run(run, progress=False)
        return s.digest

    a, b = BATCHES[:2]
    kept, cut = torch.ones(3, 11), torch.tril(torch.ones(3, 11))
    assert digest([a, b]) == digest([a], [b]) == digest([dict(input_ids=a), b.clone().T.contiguous().T])
    others = [digest(), digest([a]), digest([b, a]), digest([a, a]), digest([torch.cat([a, b])])]
    others += [digest([dict(input_ids=a, attention_mask=mask), b]) for mask in (kept, cut.bool(), cut.bfloat16())]
    others += [digest([dict(input_ids=a, use_cache=flag), b]) for flag in (True, False)]
    assert len({digest([a, b]), *others}) == 1 + len(others), "two texts, one digest"
