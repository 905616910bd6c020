"""Survey against a direct float64 computation from stored activations."""

import normgeom as ng
import numpy as np
import pytest
import torch
from norm_checks import close
from normgeom.measure.survey import _direction
from survey_truth import COLUMNS, EXACT, QUANTILES, assert_rows_equal, directly, same_tables, stored, survey
from tiny_models import tiny, token_ids
from torch import nn


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-9), (torch.float32, 2e-5)], ids=["float64", "float32"])
def test_every_row_of_the_table_directly(dtype, tol):
    model = tiny("gpt2").to(dtype)
    batches = [token_ids(3, 12, seed=i) for i in range(3)]
    table = survey(model, batches).table().set_index(["site", "side", "direction", "positions"])
    kept = stored(model, sorted(set(table.index.get_level_values("site"))), batches)
    directions = {name: _direction(name, 32, 0) for name in ("random_a", "random_b")} | {"uniform": torch.ones(32)}
    assert len(table) == 5 * 2 * 3 * 3
    for (site, side, direction, positions), got in table.iterrows():
        x = torch.cat([pair[side == "out"] for pair in kept[site]])
        rows = {"first": x[:, :1], "rest": x[:, 1:], "all": x}[positions].reshape(-1, 32)
        expected = directly(rows, directions[direction])
        assert_rows_equal(got, expected, tol, f"{site}, {side}, {direction}, {positions}")


def test_columns_are_those_of_the_design():
    table = survey(tiny("gpt2"), [token_ids(2, 4)]).table()
    assert list(table.columns) == COLUMNS
    assert set(table["positions"]) == {"first", "rest", "all"}
    assert set(table["side"]) == {"in", "out"}
    assert set(table["direction"]) == {"uniform", "random_a", "random_b"}
    assert set(table["kind"]) == {"layer"} and set(table["dim"]) == {32}
    assert not table.duplicated(["site", "side", "direction", "positions"]).any()


def test_positions_are_counted():
    tokens = survey(tiny("gpt2"), [token_ids(3, 7)]).table().groupby("positions")["tokens"].unique()
    assert {name: list(counts) for name, counts in tokens.items()} == {"first": [3], "rest": [18], "all": [21]}


def test_layer_norm_outputs_without_gain_are_at_ninety_degrees():
    table = survey(tiny("gpt2").double(), [token_ids(2, 9)]).table()
    rows = table[(table.side == "out") & (table.direction == "uniform")]
    assert (rows.mean_deg - 90).abs().max() < 1e-6
    assert rows.occupancy.max() < 1e-12


HEADS = {
    "token before head": ("qwen3", {}, "model.layers.0.self_attn.q_norm", 1),
    "head before token": ("phi", dict(qk_layernorm=True), "model.layers.0.self_attn.q_layernorm", 2),
}


@pytest.mark.parametrize(("family", "changes", "name", "axis"), HEADS.values(), ids=HEADS)
def test_heads_are_rows_of_their_own(family, changes, name, axis):
    """Queries are normalised head by head: four vectors of 8 a token, the first token's four are first."""
    model, ids = tiny(family, **changes), token_ids(3, 7)
    table = survey(model, [ids], directions=["random_a"]).table().set_index(["site", "side", "positions"])
    (x, y), *_ = stored(model, [name], [ids])[name]
    for side, v in (("in", x), ("out", y)):
        v = v.movedim(axis, 1)
        for positions, rows in (("first", v[:, :1]), ("rest", v[:, 1:]), ("all", v)):
            expected = directly(rows.reshape(-1, 8), _direction("random_a", 8, 0))
            assert_rows_equal(table.loc[name, side, positions], expected, 2e-5, f"{name}, {side}, {positions}")


@pytest.mark.parametrize(("family", "changes", "name", "axis"), HEADS.values(), ids=HEADS)
def test_padding_counts_for_no_head(family, changes, name, axis):
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])
    batch = dict(input_ids=token_ids(2, 7), attention_mask=mask)
    table = survey(tiny(family, **changes), [batch]).table()
    counts = table[table.site == name].groupby("positions")["tokens"].unique()
    assert {k: list(v) for k, v in counts.items()} == {"first": [8], "rest": [40], "all": [48]}


def test_quantiles_where_the_share_is_a_whole_number_of_tokens():
    """5 % of 20 tokens is the first of them: 0.05 rounded up to float32 would be the second."""
    model, ids = tiny("gpt2"), token_ids(1, 20)
    table = survey(model, [ids]).table().set_index(["site", "side", "direction", "positions"])
    (x, _), *_ = stored(model, ["transformer.ln_f"], [ids])["transformer.ln_f"]
    expected = directly(x[0], torch.ones(32))
    assert_rows_equal(table.loc["transformer.ln_f", "in", "uniform", "all"], expected, 2e-5, "20 tokens")


def test_flattened_tokens_have_no_first():
    table = survey(tiny("opt"), [token_ids(2, 6)]).table()
    flat = table[table.site == "model.decoder.layers.0.final_layer_norm"].groupby("positions")["tokens"].unique()
    assert {name: list(counts) for name, counts in flat.items()} == {"first": [0], "rest": [12], "all": [12]}
    empty = table[(table.tokens == 0)][EXACT + QUANTILES]
    assert len(empty) and empty.isna().all(axis=None), "statistics of nothing are NaN"


def test_batching_does_not_matter():
    model, ids = tiny("gpt2").double(), token_ids(6, 12)
    whole = survey(model, [ids]).table()
    for size in (1, 4):
        same_tables(survey(model, list(ids.split(size))).table(), whole)


def test_a_generator_of_batches_and_the_token_count():
    result = survey(tiny("gpt2"), (token_ids(2, 5, seed=i) for i in range(3)))
    assert result.tokens == 30
    assert result.run([token_ids(1, 5)], progress=False) is result
    assert result.tokens == 35, "a second run adds to the first"


def test_before_anything_ran():
    table = ng.Survey(tiny("gpt2")).table()
    assert list(table.columns) == COLUMNS
    assert set(table.tokens) == {0} and table[EXACT + QUANTILES].isna().all(axis=None)


PADDED = {"llama": ("left", "right"), "opt": ("left", "right"), "gpt2": ("right",), "bert": ("right",)}


@pytest.mark.parametrize(("family", "side"), [(f, side) for f, sides in PADDED.items() for side in sides])
def test_padding_is_not_measured(family, side):
    """Texts of four lengths, padded to one: the same table as one by one, and their first tokens are first."""
    model = tiny(family).double()
    texts = [token_ids(1, n, seed=n)[0] for n in (9, 3, 1, 6)]
    ids, mask = torch.ones(4, 9, dtype=torch.int64), torch.zeros(4, 9, dtype=torch.int64)
    for i, text in enumerate(texts):
        place = slice(9 - len(text), 9) if side == "left" else slice(0, len(text))
        ids[i, place], mask[i, place] = text, 1
    padded = survey(model, [dict(input_ids=ids, attention_mask=mask)])
    one_by_one = survey(model, [dict(input_ids=t[None], attention_mask=torch.ones(1, len(t)).long()) for t in texts])
    assert padded.tokens == one_by_one.tokens == 19
    # norms that compute in float32 whatever the model's dtype leave float32's rounding
    same_tables(padded.table(), one_by_one.table(), tol=2e-4, quantiles=0.25)


def test_nan_on_padding_is_no_news(recwarn):
    model = tiny("gpt2")
    result = ng.Survey(model)
    model.transformer.ln_f.register_forward_pre_hook(lambda m, args: (poisoned(args[0], (0, -1), torch.nan),))
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[0, -1] = 0
    result.run([dict(input_ids=token_ids(2, 5), attention_mask=mask)], progress=False)
    assert not result.excluded()[["nonfinite", "zero"]].to_numpy().any()
    assert not [w for w in recwarn if "left out" in str(w.message)]


def poisoned(x, place, value):
    x = x.clone()
    x[place] = value
    return x


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nonfinite_vectors_are_counted_reported_and_left_out(value):
    model, ids = tiny("gpt2").double(), token_ids(2, 5)
    result = ng.Survey(model)
    (x, y), *_ = stored(model, ["transformer.ln_f"], [ids])["transformer.ln_f"]
    model.transformer.ln_f.register_forward_pre_hook(lambda m, args: (poisoned(args[0], (1, 2, 3), value),))
    with pytest.warns(UserWarning, match=r"^2 vectors with NaN or Inf entries were left out; see Survey\.excluded"):
        result.run([ids], progress=False)
    excluded = result.excluded().set_index(["site", "side"])
    assert excluded.loc["transformer.ln_f", "nonfinite"].to_list() == [1, 1], "input and output, one row each"
    assert excluded.drop("transformer.ln_f").to_numpy().sum() == 0 and excluded["zero"].sum() == 0
    table = result.table().set_index(["site", "side", "direction", "positions"])
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[1, 2] = False
    for side, rows in (("in", x), ("out", y)):
        expected = directly(rows[keep], torch.ones(32))
        assert_rows_equal(table.loc["transformer.ln_f", side, "uniform", "all"], expected, 1e-9, f"ln_f {side}")
    assert table[EXACT].notna().all(axis=None), "NaN has entered an average"


def test_zero_vectors_are_counted_and_left_out(recwarn):
    model, ids = tiny("gpt2"), token_ids(2, 5)
    result = ng.Survey(model)
    model.transformer.ln_f.register_forward_pre_hook(lambda m, args: (poisoned(args[0], (0, 0), 0.0),))
    result.run([ids], progress=False)
    excluded = result.excluded().set_index(["site", "side"])
    assert excluded.loc["transformer.ln_f", "zero"].to_list() == [1, 1], "no angle in; LayerNorm of it is β = 0"
    assert excluded["zero"].sum() == 2 and excluded["nonfinite"].sum() == 0
    table = result.table().set_index(["site", "side", "direction", "positions"])
    counts = [table.loc["transformer.ln_f", "in", "uniform", p]["tokens"] for p in ("first", "rest", "all")]
    assert counts == [1, 8, 9]
    assert not [w for w in recwarn if "left out" in str(w.message)], "zero vectors need no alarm"


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "t5", "vit"])
def test_the_model_and_the_global_generator_are_left_alone(family):
    model = tiny(family).train()
    result = ng.Survey(model)
    hooks = [len(m._forward_hooks) for m in model.modules()]
    before = torch.get_rng_state()
    batch = token_ids(2, 5)
    inputs = {"t5": dict(input_ids=batch, decoder_input_ids=batch), "vit": dict(pixel_values=torch.ones(2, 3, 8, 8))}
    result.run([inputs.get(family, batch)], progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert all(m.training for m in model.modules()) and all(p.grad is None for p in model.parameters())


def test_a_plain_module():
    model = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8))
    x = torch.randn(2, 5, 8)
    table = survey(model, [x], example_inputs=x, directions=["uniform"]).table()
    row = table[(table.side == "out") & (table.positions == "all")].iloc[0]
    assert_rows_equal(row, directly(model(x).detach().reshape(-1, 8), torch.ones(8)), 2e-5, "plain module")


def test_a_decoder_is_not_masked_by_its_encoders_padding():
    """Also where both happen to have one length."""
    model, ids = tiny("t5"), token_ids(1, 6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0]])
    for length in (4, 6):
        batch = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=token_ids(1, length))
        table = survey(model, [batch], directions=["uniform"]).table()
        counted = table[(table.side == "in") & (table.positions == "all")].set_index("site")["tokens"]
        assert counted["encoder.final_layer_norm"] == 3
        assert counted["decoder.final_layer_norm"] == length, f"decoder of {length}: the encoder's mask was applied"


def test_random_directions():
    d = 4096
    a, b = (_direction(name, d, 0) for name in ("random_a", "random_b"))
    for u in (a, b):
        assert float(u.norm()) == pytest.approx(1.0, abs=1e-12)
        assert abs(float(u.mean()) * d**0.5) < 4, "far from isotropic: entries from 0 to 1?"
    assert abs(float(a @ b)) * d**0.5 < 4, "two names, one direction?"
    assert torch.equal(a, _direction("random_a", d, 0))
    assert not torch.allclose(a, _direction("random_a", d, 1)), "the seed plays no part"
    close(_direction("uniform", 4, 0), torch.full((4,), 0.5), 1e-15, "uniform", "Not of unit length?")


def test_the_seed_and_the_name_decide_the_directions():
    model, ids = tiny("gpt2"), token_ids(2, 9)
    torch.manual_seed(5)
    first = survey(model, [ids]).table()
    torch.manual_seed(6)
    same_tables(survey(model, [ids]).table(), first)
    means = {d: t.mean_deg.to_numpy() for d, t in first.groupby("direction")}
    assert not np.allclose(means["random_a"], means["random_b"], atol=1e-3), "two random directions must differ"
    other = survey(model, [ids], seed=1).table()
    moved = {d: t.mean_deg.to_numpy() for d, t in other.groupby("direction")}
    assert np.array_equal(moved["uniform"], means["uniform"])
    assert not np.allclose(moved["random_a"], means["random_a"], atol=1e-3)
    alone = survey(model, [ids], directions=["random_b"]).table()
    assert np.allclose(alone.mean_deg, means["random_b"]), "a direction must not depend on its neighbours"
