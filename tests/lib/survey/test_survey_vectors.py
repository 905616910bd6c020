"""Directions of the user's own."""

import normgeom as ng
import numpy as np
import pytest
import torch
from norm_checks import draw
from normgeom.survey.directions import Directions
from survey_truth import KEYS, assert_rows_equal, directly, same_tables, stored, survey, table_of
from tiny_models import tiny, token_ids
from torch import nn


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2")


@pytest.fixture(scope="module")
def qwen():
    """Norms of width 32 and, for queries and keys, of width 8."""
    return tiny("qwen3")


def test_vectors_are_measured_at_norms_of_their_width(qwen):
    ids, wide, narrow = token_ids(2, 7), draw(32, seed=1), 100 * draw(8, seed=2)
    result = survey(qwen, [ids], directions=["uniform"], vectors=dict(wide=wide, narrow=narrow))
    assert result.directions == ("uniform", "wide", "narrow")
    table = result.table()
    measured = {d: set(rows.direction) for d, rows in table.groupby("dim")}
    assert measured == {32: {"uniform", "wide"}, 8: {"uniform", "narrow"}}
    table = table.set_index(KEYS)
    for name, of, vector in (
        ("model.norm", "wide", wide),
        ("model.layers.1.self_attn.k_norm", "narrow", narrow),
    ):
        (pair,) = stored(qwen, [name], [ids])[name]
        for side, x in zip(("in", "out"), pair, strict=True):
            expected = directly(x.reshape(-1, len(vector)), vector)
            assert_rows_equal(table.loc[name, side, of, "all"], expected, 1e-9, f"{name}, {side}, {of}")


OWN = {
    "a parameter": lambda v: nn.Parameter(v.float()),
    "part of a graph": lambda v: v.clone().requires_grad_() * 1,
    "a list": lambda v: v.tolist(),
    "numpy": lambda v: v.numpy(),
    "integers": lambda v: (8 * v).int(),
    "bfloat16": lambda v: v.bfloat16(),
    "not contiguous": lambda v: torch.stack([v, v])[:, ::1].T.contiguous()[:, 0],
    "huge": lambda v: v * 1e200,
    "minute": lambda v: v * 1e-200,
}


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_what_a_vector_may_be(model, make):
    """Its length and its type play no part."""
    v, ids = torch.arange(32.0, dtype=torch.float64) / 8 - 1, token_ids(2, 7)
    got = survey(model, [ids], directions=[], vectors=dict(v=make(v))).table()
    expected = survey(model, [ids], directions=[], vectors=dict(v=v)).table()
    same_tables(got, expected)


def test_the_sign_of_a_vector_counts(model):
    ids, v = token_ids(2, 7), draw(32)
    table = table_of(model, [ids], directions=[], vectors=dict(v=v, opposite=-v)).reset_index(level="direction")
    v, opposite = (table[table.direction == name] for name in ("v", "opposite"))
    assert np.allclose(v.mean_deg + opposite.mean_deg, 180, rtol=0, atol=1e-9), "angles folded?"
    assert np.allclose(v.occupancy, opposite.occupancy, rtol=0, atol=1e-12), "occupancy: not of squares?"


def test_a_vector_changed_later_is_the_one_that_was_given(model):
    v, ids = draw(32), token_ids(2, 7)
    expected = survey(model, [ids], vectors=dict(v=v)).table()
    result = ng.Survey(model, vectors=dict(v=v))
    v.zero_()[0] = 1
    same_tables(result.run([ids], progress=False).table(), expected)


def test_digests_tell_vectors_apart():
    def digest(**vectors):
        return Directions(["uniform"], 0, vectors).digest()

    v, w = draw(8), draw(8, seed=1)
    assert digest(v=v, w=w) == digest(w=w, v=v), "the order plays no part"
    assert len({digest(), digest(v=v), digest(w=v), digest(v=w), digest(v=w, w=v), digest(v=v, w=w)}) == 6
