"""Bad input to a survey: named before any work, and the state as before."""

import math

import normgeom as ng
import numpy as np
import pytest
import torch
from normgeom.survey import state
from normgeom.survey.tally import Tally
from survey_truth import assert_same_state, frozen, same_tables, survey
from tiny_models import VOCABULARY, tiny, token_ids
from torch import nn

BATCHES = [token_ids(3, 11, seed=i) for i in range(4)]


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2")


@pytest.fixture(scope="module")
def qwen():
    """Norms of width 32 and, for queries and keys, of width 8."""
    return tiny("qwen3")


def test_more_directions_than_memory_holds(model, monkeypatch):
    """Each takes 2 × 2 × 720 counts of 8 bytes at each of 5 norms, twice: as much as here for some 30."""
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2000}[name])
    with pytest.raises(
        ValueError, match=r"^directions: the sums of 60 at 5 norms take .* GB, and the machine has 0\.0082; ask"
    ):
        ng.Survey(model, [f"random_{i}" for i in range(60)])
    ng.Survey(model, [f"random_{i}" for i in range(10)])


def test_a_model_without_norms():
    with pytest.raises(ValueError, match=r"^model: this Sequential runs no LayerNorm or RMSNorm"):
        ng.Survey(nn.Sequential(nn.Linear(8, 8)), example_inputs=torch.zeros(2, 8))


BAD_VECTORS = {
    "two axes": ("v", torch.ones(1, 32), r"'v' to be one-dimensional, finite and not zero, got shape \(1, 32\)"),
    "no axis": ("v", torch.tensor(1.0), "'v' to be one-dimensional"),
    "empty": ("v", torch.ones(0), "'v' to be one-dimensional, finite and not zero"),
    "zero": ("v", torch.zeros(32), "'v' to be one-dimensional, finite and not zero"),
    "NaN": ("v", torch.full((32,), math.nan), "'v' to be one-dimensional, finite"),
    "Inf": ("v", torch.full((32,), math.inf), "'v' to be one-dimensional, finite"),
    "another width": ("v", torch.ones(31), r"'v' to have the width of a norm, \[8, 32\], got 31"),
    "uniform": ("uniform", torch.ones(32), "a name that is not a direction's already, got 'uniform'"),
    "random": ("random_a", torch.ones(32), "a name that is not a direction's already, got 'random_a'"),
    "signs": ("signs_", torch.ones(32), "a name that is not a direction's already, got 'signs_'"),
    "matched": ("matched_x", torch.ones(32), "a name that is not a direction's already, got 'matched_x'"),
}


@pytest.mark.parametrize(("name", "vector", "message"), BAD_VECTORS.values(), ids=BAD_VECTORS)
def test_bad_vectors(qwen, name, vector, message):
    with pytest.raises(ValueError, match=f"^vectors: expected {message}"):
        ng.Survey(qwen, vectors={name: vector})


@pytest.mark.parametrize("name", ["mean", "Uniform", "random", "signs", "matched", "uniform_", "v", ""])
def test_an_unknown_direction(model, name):
    known = "'uniform', 'random_…', 'signs_…', 'matched_…' or a name of vectors"
    with pytest.raises(ValueError, match=rf"^directions: expected {known}, got '{name}'"):
        ng.Survey(model, directions=["uniform", name], vectors=dict(w=torch.ones(32)))


def test_no_direction_at_all(model):
    with pytest.raises(ValueError, match=r"^directions: expected at least one, got none"):
        ng.Survey(model, directions=[])


class Uncalled(nn.Module):
    def forward(self, *_, **__):
        raise AssertionError("bad input must be found before any work")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(directions=["matched_a"]), "pilot: expected a batch to match 'matched_a' with, got none"),
        (dict(directions=["random"]), "directions: expected 'uniform'"),
        (dict(vectors=dict(v=torch.zeros(3))), "vectors: expected 'v'"),
    ],
    ids=["no pilot", "unknown", "zero vector"],
)
def test_bad_input_is_found_before_the_model_runs(settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        ng.Survey(Uncalled(), example_inputs=torch.ones(2, 3), **settings)


PILOTS = {
    "id too large": (torch.tensor([[1, 64]]), ValueError, "expected token ids from 0 to 63, got 1 to 64"),
    "floats": (torch.tensor([[1.0]]), TypeError, r"expected integer token ids, got torch\.float32"),
    "a list": ([[1, 2]], TypeError, "expected token ids as a tensor, got list"),
    "empty": (torch.zeros(0, 5, dtype=torch.int64), ValueError, "expected tokens that a norm sees, got none"),
    "padding": (
        dict(input_ids=token_ids(1, 3), attention_mask=torch.zeros(1, 3)),
        ValueError,
        "expected tokens that a norm sees, got none",
    ),
    "mask of four axes": (
        dict(input_ids=token_ids(1, 3), attention_mask=torch.ones(1, 1, 3, 3)),
        ValueError,
        r"expected attention_mask \(batch, length\), got shape \(1, 1, 3, 3\)",
    ),
    "mask of another length": (
        dict(input_ids=token_ids(1, 3), attention_mask=torch.tensor([[0, 1, 1, 1]])),
        ValueError,
        r"transformer\.h\.0\.ln_1: an input of shape \(1, 3, d\) does not show which of its rows are padding",
    ),
}


@pytest.mark.parametrize(("pilot", "error", "message"), PILOTS.values(), ids=PILOTS)
def test_a_bad_pilot(model, pilot, error, message):
    """Named as the pilot, not as one of the batches; the model is as before."""
    with pytest.raises(error, match=f"^pilot: {message}"):
        ng.Survey(model.train(), directions=["matched_a"], pilot=pilot)
    assert all(m.training for m in model.modules()), "the mode was not restored"
    assert not any(m._forward_hooks for m in model.modules()), "a hook was left behind"
    model.eval()


TOO_LARGE = torch.tensor([[1, VOCABULARY]])
IDS = {
    "too large": (TOO_LARGE, ValueError, rf"expected token ids from 0 to {VOCABULARY - 1}, got 1 to {VOCABULARY}"),
    "negative": (torch.tensor([[-1, 5]]), ValueError, rf"expected token ids from 0 to {VOCABULARY - 1}, got -1 to 5"),
    "float": (torch.tensor([[1.0, 2.0]]), TypeError, r"expected integer token ids, got torch\.float32"),
    "in a mapping": ({"input_ids": TOO_LARGE}, ValueError, rf"expected token ids from 0 to {VOCABULARY - 1}, got 1"),
    "one axis": (torch.tensor([1, 2]), ValueError, r"expected token ids \(batch, length\), got shape \(2,\)"),
    "a list": ([[1, 2]], TypeError, "expected token ids as a tensor, got list"),
    "a list in a mapping": ({"input_ids": [[1, 2]]}, TypeError, "expected token ids as a tensor, got list"),
    "a text": ("The cat", TypeError, "expected token ids as a tensor, got str"),
}


@pytest.mark.parametrize(("bad", "error", "message"), IDS.values(), ids=IDS)
def test_bad_token_ids_leave_the_state(model, bad, error, message):
    s = survey(model, BATCHES[:2])
    before = frozen(s)
    with pytest.raises(error, match=f"^batches: {message}"):
        s.run([bad], progress=False)
    assert_same_state(s, before)
    with pytest.raises(error):
        s.run([BATCHES[2], bad, BATCHES[3]], progress=False)
    assert s.tokens == before.tokens + 33, "the batch before the bad one counts, the one after it does not"
    same_tables(s.table(), survey(model, BATCHES[:3]).table())


def test_token_ids_of_a_decoder_are_checked_too():
    """On a GPU one that is too large ends the process."""
    model, message = tiny("t5"), f"^batches: expected token ids from 0 to {VOCABULARY - 1}, got 1 to {VOCABULARY}"
    with pytest.raises(ValueError, match=message):
        survey(model, [dict(input_ids=torch.tensor([[1, 2]]), decoder_input_ids=TOO_LARGE)])
    model.config.decoder_vocab_size = 10  # Marian's may differ
    with pytest.raises(ValueError, match=r"^batches: expected token ids from 0 to 9, got 10 to 10"):
        survey(model, [dict(input_ids=torch.tensor([[1, 20]]), decoder_input_ids=torch.tensor([[10]]))])


def test_a_tokenizer_of_another_model_is_named(model):
    message = rf"got 1 to {VOCABULARY}: the model's vocabulary is of {VOCABULARY}; is the tokenizer another model's\?$"
    with pytest.raises(ValueError, match=message):
        survey(model, [TOO_LARGE])


@pytest.mark.parametrize("batches", [BATCHES[0], dict(input_ids=BATCHES[0])], ids=["a tensor", "a mapping"])
def test_one_batch_that_is_in_no_list(model, batches):
    s = ng.Survey(model)
    with pytest.raises((TypeError, ValueError), match=r"^batches: expected token ids"):
        s.run(batches, progress=False)
    assert s.batches == 0


def test_a_seed_of_numpy_can_be_saved(model, tmp_path):
    s = ng.Survey(model, seed=np.int64(3))
    s.save(tmp_path / "s.npz")
    assert ng.Survey.load(tmp_path / "s.npz").seed == 3
    with pytest.raises(TypeError):
        ng.Survey(model, seed=0.5)


def test_an_empty_batch_adds_nothing(model):
    s = survey(model, BATCHES[:1])
    before = frozen(s)
    s.run([torch.zeros(0, 5, dtype=torch.int64)], progress=False)
    assert (s.tokens, s.batches) == (33, 2), "it is a batch without tokens"
    same_tables(s.table(), before.table())


GARBAGE = {
    "text": lambda good: b"this is not a survey",
    "empty": lambda good: b"",
    "truncated": lambda good: good[: len(good) // 2],
    "damaged": lambda good: good[:3000] + bytes([good[3000] ^ 255]) + good[3001:],
    "a zip's first bytes": lambda good: b"PK\x03\x04 and no more",
}
STRANGERS = {
    "an array": lambda file: np.save(file, np.zeros(3)),
    "other arrays": lambda file: np.savez(file, x=np.zeros(3)),
    "incomplete": lambda file: np.savez(file, about=np.array(f'{{"format": {state._FORMAT}, "sites": []}}')),
    "not a mapping": lambda file: np.savez(file, about=np.array("3")),
    "more than a survey's": lambda file: state.write(file.name, dict(ABOUT, digest="", more=1), [Tally.empty(1)]),
    "less than a survey's": lambda file: state.write(file.name, ABOUT, [Tally.empty(1)]),
}
ABOUT = dict(directions=["uniform"], sites=[], seed=0, given=["", ""], fingerprint="", tokens=0, batches=0)
REFUSED = r"^path: .*s\.npz is not the state of a survey"


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_a_garbage_file_is_named(model, tmp_path, garbage):
    path = tmp_path / "s.npz"
    survey(model, BATCHES).save(path)
    path.write_bytes(garbage(path.read_bytes()))
    with pytest.raises(ValueError, match=REFUSED):
        ng.Survey.load(path)


@pytest.mark.parametrize("write", STRANGERS.values(), ids=STRANGERS)
def test_a_file_of_numpy_that_is_no_survey_is_named(tmp_path, write):
    with open(tmp_path / "s.npz", "wb") as file:
        write(file)
    with pytest.raises(ValueError, match=REFUSED):
        ng.Survey.load(tmp_path / "s.npz")


def test_a_file_of_another_format_is_named(model, tmp_path, monkeypatch):
    """Whole and readable, and what its fields mean nobody knows."""
    with monkeypatch.context() as patch:
        patch.setattr(state, "_FORMAT", state._FORMAT + 1)
        ng.Survey(model).save(tmp_path / "s.npz")
    with pytest.raises(ValueError, match=REFUSED):
        ng.Survey.load(tmp_path / "s.npz")


def test_any_byte_of_a_file_may_be_damaged(model, tmp_path):
    """At both ends, where zip, numpy and Python's tokenizer read headers: refused, or nothing that counts."""
    path = tmp_path / "s.npz"
    s = survey(model, BATCHES[:1], directions=["uniform"])
    s.save(path)
    good, ends = path.read_bytes(), [*range(0, 200, 2), *range(-160, 0, 2)]
    for place in ends:
        bad = bytearray(good)
        bad[place] ^= 255
        path.write_bytes(bad)
        try:
            loaded = ng.Survey.load(path)
        except ValueError as error:
            assert "is not the state of a survey" in str(error), f"byte {place}: {error}"
        else:
            assert_same_state(loaded, s)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        ng.Survey.load(tmp_path / "nowhere.npz")
