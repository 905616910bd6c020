"""Several networks in one table, the rows of the uniform vector, and the words that a reader is shown."""

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from normgeom.models.gpt2 import gpt2
from normgeom_lab.inference import WORDS, at_last_norm, in_words, kept_as, of_uniform, survey_runs
from survey_truth import stored
from tiny_models import token_ids

CONFIG = gpt2(vocabulary=64, length=16, width=12, layers=1, heads=2)
BATCHES = [token_ids(3, 8), token_ids(2, 8) * 3 % 64]
CHOSEN = ["uniform", "random_a", "matched_0"]


@pytest.fixture(scope="module")
def networks():
    return {(name, run): twin for run in (4, 5) for name, twin in zip("ab", ng.twins(CONFIG, run), strict=True)}


@pytest.fixture(scope="module")
def angles(networks):
    return survey_runs(networks, BATCHES, CHOSEN, seed=7)


def test_the_rows_are_those_of_each_survey(networks, angles):
    for (name, run), network in networks.items():
        expected = ng.Survey(network, CHOSEN, 7, pilot=BATCHES[0]).run(BATCHES, progress=False).table()
        got = angles[(angles.model == name) & (angles.run == run)].drop(columns=["model", "run"])
        pd.testing.assert_frame_equal(got.reset_index(drop=True), expected)
    assert list(dict.fromkeys(zip(angles.model, angles.run, strict=True))) == list(networks), "another order"
    assert angles.index.is_unique


def test_a_kept_survey_goes_on_where_it_was(networks, angles, tmp_path):
    of_one = {("org/a", 4): networks["a", 4]}
    interrupted = ng.Survey(networks["a", 4], CHOSEN, 7, pilot=BATCHES[0])
    interrupted.run(BATCHES[:1], progress=False, checkpoint=kept_as(tmp_path, "org/a", 4))
    got = survey_runs(of_one, BATCHES, CHOSEN, 7, out=tmp_path)
    expected = angles[(angles.model == "a") & (angles.run == 4)].reset_index(drop=True)
    pd.testing.assert_frame_equal(got.drop(columns="model"), expected.drop(columns="model"))
    assert ng.Survey.load(kept_as(tmp_path, "org/a", 4)).batches == 2
    with pytest.raises(ValueError, match=r"^checkpoint: expected the same seed, 8, got 7"):
        survey_runs(of_one, BATCHES, CHOSEN, 8, out=tmp_path)


@pytest.mark.parametrize("empty", ["networks", "batches"])
def test_nothing_to_survey(networks, empty):
    given = dict(networks=networks, batches=BATCHES) | {empty: type(BATCHES)() if empty == "batches" else {}}
    with pytest.raises(ValueError, match=rf"^{empty}: expected at least one, got none$"):
        survey_runs(**given, directions=CHOSEN, seed=7)


@pytest.mark.parametrize(("side", "positions"), [("in", "rest"), ("out", "rest"), ("in", "first")])
def test_the_uniform_vector_s_rows(angles, side, positions):
    run = angles[(angles.model == "a") & (angles.run == 5)]
    got = of_uniform(run, side, positions)
    assert got.site.tolist() == ["transformer.h.0.ln_1", "transformer.h.0.ln_2", "transformer.ln_f"], "order of use"
    assert set(got.direction) == {"uniform"} and set(got.side) == {side} and set(got.positions) == {positions}
    assert set(got.tokens) == {5 if positions == "first" else 35}


def test_by_default_the_inputs_without_first_positions(angles):
    pd.testing.assert_frame_equal(of_uniform(angles), of_uniform(angles, "in", "rest"))


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("uniform", "^direction: expected rows with 'uniform', got a table without$"),
        ("rest", "^positions: expected rows with 'rest'"),
        ("in", "^side: expected rows with 'in'"),
    ],
)
def test_a_table_without_them(angles, gone, message):
    left = angles[~angles.isin([gone]).any(axis=1)]
    with pytest.raises(ValueError, match=message):
        of_uniform(left)


def test_the_last_norm_s_stream_from_its_vectors(networks, angles):
    """Length and component from hidden vectors kept by hooks of our own, by numpy."""
    found = at_last_norm(angles)
    assert list(found.index) == list(networks) and found.index.names == ["model", "seed"]
    for key, network in networks.items():
        rows = torch.cat(
            [x[:, 1:].flatten(0, 1) for x, _ in stored(network, ["transformer.ln_f"], BATCHES)["transformer.ln_f"]]
        )
        rows = rows.double().numpy()
        lengths = np.linalg.norm(rows, axis=-1)
        cosines = rows.sum(-1) / lengths / np.sqrt(12)
        assert found.length[key] == pytest.approx(lengths.mean(), rel=1e-5), "another norm's, or first positions too?"
        expected = lengths.mean() * np.sqrt((cosines**2).mean())
        assert found["along 1"][key] == pytest.approx(expected, rel=1e-5), "a factor √d? The mean cosine?"


def test_words_for_names(angles):
    shown = in_words(of_uniform(angles), ["kind", "mean_deg", "top_share"])
    assert list(shown.columns) == ["kind", "mean angle / degrees", "share of the largest entry"]
    assert shown.index.name == "norm" and shown.index[0] == "transformer.h.0.ln_1"
    assert set(shown.kind) == {"LayerNorm", "RMSNorm"}
    assert shown["mean angle / degrees"].tolist() == of_uniform(angles).mean_deg.tolist()


def test_words_without_kinds_leave_numbers_alone(angles):
    assert in_words(of_uniform(angles), ["occupancy"]).occupancy.tolist() == of_uniform(angles).occupancy.tolist()


def test_a_column_without_words(angles):
    with pytest.raises(
        ValueError, match=rf"^columns: expected some of {', '.join(WORDS).replace('|', '.')}, got q05_deg$"
    ):
        in_words(angles, ["kind", "q05_deg"])
