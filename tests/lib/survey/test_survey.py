"""Survey against a direct float64 computation from stored activations."""

import normgeom as ng
import pytest
import torch
from survey_truth import (
    COLUMNS,
    EXACT,
    KEYS,
    QUANTILES,
    Skipping,
    assert_rows_equal,
    direction,
    directly,
    same_tables,
    stored,
    survey,
    table_of,
)
from tiny_models import tiny, token_ids
from torch import nn


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "albert", "chameleon"])
def test_statistics_of_many_norms_at_once_are_those_of_each(family, monkeypatch):
    """Whether norms wait for each other or not; a norm that runs twice in a batch too."""
    model, batches = tiny(family), [token_ids(3, 7), token_ids(2, 5, seed=1)]
    at_once = survey(model, batches).table()
    monkeypatch.setattr("normgeom.survey.meter._WAITING", 0)
    same_tables(at_once, survey(model, batches).table(), tol=1e-12, quantiles=0)


def test_every_row_of_the_table_directly():
    model = tiny("gpt2").double()
    batches = [token_ids(3, 12, seed=i) for i in range(3)]
    table = table_of(model, batches)
    kept = stored(model, sorted(set(table.index.get_level_values("site"))), batches)
    vectors = {name: direction(name, 32, 0) for name in ("random_a", "random_b")} | {"uniform": torch.ones(32)}
    assert len(table) == 5 * 2 * 3 * 3
    for (site, side, name, positions), got in table.iterrows():
        x = torch.cat([pair[side == "out"] for pair in kept[site]])
        rows = {"first": x[:, :1], "rest": x[:, 1:], "all": x}[positions].reshape(-1, 32)
        expected = directly(rows, vectors[name])
        assert_rows_equal(got, expected, 1e-9, f"{site}, {side}, {name}, {positions}")


def test_columns_are_those_of_the_design():
    table = survey(tiny("gpt2"), [token_ids(2, 4)]).table()
    assert list(table.columns) == COLUMNS
    assert set(table["positions"]) == {"first", "rest", "all"}
    assert set(table["side"]) == {"in", "out"}
    assert set(table["direction"]) == {"uniform", "random_a", "random_b"}
    assert set(table["kind"]) == {"layer"} and set(table["dim"]) == {32}
    assert not table.duplicated(KEYS).any()


def test_positions_are_counted():
    tokens = survey(tiny("gpt2"), [token_ids(3, 7)]).table().groupby("positions")["tokens"].unique()
    assert {name: list(counts) for name, counts in tokens.items()} == {"first": [3], "rest": [18], "all": [21]}


def test_layer_norm_outputs_without_gain_are_at_ninety_degrees():
    table = survey(tiny("gpt2").double(), [token_ids(2, 9)]).table()
    rows = table[(table.side == "out") & (table.direction == "uniform")]
    assert (rows.mean_deg - 90).abs().max() < 1e-6
    assert rows.occupancy.max() < 1e-12


def test_quantiles_where_the_share_is_a_whole_number_of_tokens():
    """5 % of 20 tokens is the first of them: 0.05 rounded up to float32 would be the second."""
    model, ids = tiny("gpt2"), token_ids(1, 20)
    table = table_of(model, [ids])
    (x, _), *_ = stored(model, ["transformer.ln_f"], [ids])["transformer.ln_f"]
    expected = directly(x[0], torch.ones(32))
    assert_rows_equal(table.loc["transformer.ln_f", "in", "uniform", "all"], expected, 1e-9, "20 tokens")


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
    message = r"^2 vectors with NaN or Inf entries were left out, at transformer.ln_f; see Survey\.excluded"
    with pytest.warns(UserWarning, match=message) as warned:
        result.run([ids], progress=False)
    assert [w.filename for w in warned] == [__file__], "it points to the library, not to who called run"
    excluded = result.excluded().set_index(["site", "side"])
    assert excluded.loc["transformer.ln_f", "nonfinite"].to_list() == [1, 1], "input and output, one row each"
    assert excluded.drop("transformer.ln_f").to_numpy().sum() == 0 and excluded["zero"].sum() == 0
    table = result.table().set_index(KEYS)
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[1, 2] = False
    for side, rows in (("in", x), ("out", y)):
        expected = directly(rows[keep], torch.ones(32))
        assert_rows_equal(table.loc["transformer.ln_f", side, "uniform", "all"], expected, 1e-9, f"ln_f {side}")
    assert table[[*EXACT, "drop_error"]].notna().all(axis=None), "NaN has entered an average"


def test_an_output_alone_that_is_not_finite():
    """The sides are counted apart."""
    model = tiny("gpt2")
    result = ng.Survey(model)
    model.transformer.ln_f.register_forward_hook(lambda m, args, y: poisoned(y, (1, 2, 3), torch.nan))
    with pytest.warns(UserWarning, match=r"^1 vectors with NaN"):
        result.run([token_ids(2, 5)], progress=False)
    tokens = result.table().set_index(KEYS).tokens.loc["transformer.ln_f"]
    assert (tokens["in", "uniform", "all"], tokens["out", "uniform", "all"]) == (10, 9)


def test_zero_vectors_are_counted_and_left_out(recwarn):
    model, ids = tiny("gpt2"), token_ids(2, 5)
    result = ng.Survey(model)
    (x, y), *_ = stored(model, ["transformer.ln_f"], [ids])["transformer.ln_f"]
    model.transformer.ln_f.register_forward_pre_hook(lambda m, args: (poisoned(args[0], (0, 0), 0.0),))
    result.run([ids], progress=False)
    excluded = result.excluded().set_index(["site", "side"])
    assert excluded.loc["transformer.ln_f", "zero"].to_list() == [1, 1], "no angle in; LayerNorm of it is β = 0"
    assert excluded["zero"].sum() == 2 and excluded["nonfinite"].sum() == 0
    table = result.table().set_index(KEYS)
    counts = [table.loc["transformer.ln_f", "in", "uniform", p]["tokens"] for p in ("first", "rest", "all")]
    assert counts == [1, 8, 9]
    for side, rows in (("in", x), ("out", y)):
        expected = directly(rows.reshape(-1, 32)[1:], torch.ones(32))
        assert_rows_equal(table.loc["transformer.ln_f", side, "uniform", "all"], expected, 1e-9, f"ln_f {side}")
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
    assert_rows_equal(row, directly(model(x).detach().reshape(-1, 8), torch.ones(8)), 1e-9, "plain module")


def test_a_norm_that_runs_twice_in_one_pass():
    """ALBERT's layers share their modules: both passes are measured."""
    model, ids = tiny("albert"), token_ids(2, 7)
    name = "encoder.albert_layer_groups.0.albert_layers.0.attention.LayerNorm"
    calls = stored(model, [name], [ids])[name]
    assert len(calls) == 2
    table = table_of(model, [ids], directions=["random_a"])
    for side, k in (("in", 0), ("out", 1)):
        x = torch.cat([call[k] for call in calls])
        for positions, rows in (("first", x[:, :1]), ("all", x)):
            expected = directly(rows.reshape(-1, 32), direction("random_a", 32, 0))
            assert_rows_equal(table.loc[name, side, "random_a", positions], expected, 1e-9, f"{side}, {positions}")


def test_a_norm_that_not_every_batch_reaches():
    """It counts the batches that did, and the tokens are those of all."""
    model = Skipping()
    x, y = torch.randn(2, 5, 8), torch.randn(3, 4, 8)
    result = survey(model, [dict(x=x), dict(x=y, both=False)], example_inputs=dict(x=x))
    assert (result.tokens, result.batches) == (22, 2)
    counted = result.table().query("positions == 'all'").groupby("site").tokens.unique()
    assert {name: list(counts) for name, counts in counted.items()} == {"always": [22], "asked": [10]}


def test_progress_is_shown_where_it_is_wanted(capsys, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    s = ng.Survey(tiny("gpt2"), ["uniform"])
    s.run([token_ids(1, 3)], progress=False)
    assert capsys.readouterr().err == ""
    s.run([token_ids(1, 3)])
    assert "survey" in capsys.readouterr().err
