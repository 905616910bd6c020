"""Bad input to a survey: named before any work, and the state as before."""

import normgeom as ng
import numpy as np
import pytest
import torch
from survey_truth import assert_same_state, frozen, same_tables, survey
from tiny_models import VOCABULARY, tiny, token_ids
from torch import nn

BATCHES = [token_ids(3, 11, seed=i) for i in range(4)]


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2")


def test_a_model_without_norms():
    with pytest.raises(ValueError, match=r"^model: this Sequential runs no LayerNorm or RMSNorm"):
        ng.Survey(nn.Sequential(nn.Linear(8, 8)), example_inputs=torch.zeros(2, 8))


@pytest.mark.parametrize("name", ["mean", "Uniform", "random", ""])
def test_an_unknown_direction(model, name):
    with pytest.raises(ValueError, match=rf"^directions: expected 'uniform' or 'random_…', got '{name}'"):
        ng.Survey(model, directions=["uniform", name])


def test_no_directions_are_refused(model):
    with pytest.raises(ValueError, match=r"^directions"):
        ng.Survey(model, directions=[])


def test_tokens_count_positions_not_numbers():
    """Inputs that are vectors: two rows of five positions are ten tokens, not eighty."""
    net, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), torch.randn(2, 5, 8)
    assert survey(net, [x], example_inputs=x).tokens == 10


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (
            torch.tensor([[1, VOCABULARY]]),
            ValueError,
            rf"batches: expected token ids from 0 to {VOCABULARY - 1}, got 1 to {VOCABULARY}",
        ),
        (torch.tensor([[-1, 5]]), ValueError, rf"batches: expected token ids from 0 to {VOCABULARY - 1}, got -1 to 5"),
        (torch.tensor([[1.0, 2.0]]), TypeError, r"batches: expected integer token ids, got torch\.float32"),
        (
            {"input_ids": torch.tensor([[VOCABULARY]])},
            ValueError,
            rf"batches: expected token ids from 0 to {VOCABULARY - 1}",
        ),
    ],
    ids=["too large", "negative", "float", "in a mapping"],
)
def test_bad_token_ids_leave_the_state(model, bad, error, message):
    s = survey(model, BATCHES[:2])
    before = frozen(s)
    with pytest.raises(error, match="^" + message):
        s.run([bad], progress=False)
    assert_same_state(s, before)
    with pytest.raises(error):
        s.run([BATCHES[2], bad, BATCHES[3]], progress=False)
    assert s.tokens == before.tokens + 33, "the batch before the bad one counts, the one after it does not"
    same_tables(s.table(), survey(model, BATCHES[:3]).table())


def test_an_empty_batch_adds_nothing(model):
    s = survey(model, BATCHES[:1])
    before = frozen(s)
    s.run([torch.zeros(0, 5, dtype=torch.int64)], progress=False)
    assert_same_state(s, before)


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
    "another format": lambda file: np.savez(file, about=np.array('{"format": 99, "sites": []}')),
    "incomplete": lambda file: np.savez(file, about=np.array('{"format": 1, "sites": []}')),
    "not a mapping": lambda file: np.savez(file, about=np.array("3")),
}
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


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        ng.Survey.load(tmp_path / "nowhere.npz")
