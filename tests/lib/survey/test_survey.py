"""Survey against a direct float64 computation from stored activations."""

import math

import normgeom as ng
import pytest
import torch
from norm_checks import draw
from normgeom.survey.directions import unit
from survey_truth import (
    EXACT,
    KEYS,
    Skipping,
    assert_rows_equal,
    directly,
    dropped,
    stored,
    survey,
    table_of,
)
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn

# of drop_error, relative: what the rounding of the norm's own output leaves; the rest of the table is exact
ROUNDED = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def far_away(family, mean):
    """A model whose norms have random gains and see vectors with ``mean`` standard deviations of mean."""
    model = tiny(family)
    norms = [site.module for site in ng.find_norms(model)]
    randomise_norms(model, norms)
    if mean:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1e-2 if p.dim() > 1 else 1)  # sublayers add little to what they read
            embedding = model.get_input_embeddings().weight
            embedding.copy_(mean + draw(*embedding.shape, seed=3))
            for norm in norms:  # where they stand behind the sum, the next reads what they put out
                norm.weight.copy_(1 + 0.1 * norm.weight)
                if getattr(norm, "bias", None) is not None:
                    norm.bias.copy_(mean + 0.1 * norm.bias)
    return model


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize("mean", [0, 30], ids=lambda mean: f"mean {mean}σ")
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5"])
def test_every_row_of_the_table(family, mean, dtype):
    """To 1e-9 degrees of the vectors as they are, in whichever dtype that is."""
    model, given = far_away(family, mean).to(dtype), [token_ids(3, 12, seed=i) for i in range(2)]
    if family == "t5":
        given = [dict(input_ids=ids, decoder_input_ids=ids.flip(0)) for ids in given]
    sites = {site.name: site for site in ng.find_norms(model)}
    kept = {n: [torch.cat(xs) for xs in zip(*pairs, strict=True)] for n, pairs in stored(model, sites, given).items()}
    for name, (x, _) in kept.items():
        ratio = float((x.double().mean(-1) / x.double().std(-1, correction=0)).abs().median())
        assert not mean or 25 < ratio < 35, f"{name}: a mean of {ratio:.1f}σ is no test"
    table = table_of(model, given, directions=["uniform", "random_a"])
    assert len(table) == len(sites) * 2 * 2 * 3
    vectors = {"uniform": torch.ones(32), "random_a": unit("random_a", 32, 0)}
    for (name, side, of, positions), got in table.iterrows():
        rows, what = kept[name][side == "out"], f"{name}, {side}, {of}, {positions}"
        chosen = {"first": slice(0, 1), "rest": slice(1, None), "all": slice(None)}[positions]
        assert_rows_equal(got, directly(rows[:, chosen].reshape(-1, 32), vectors[of]), what)
        if sites[name].kind == "rms":
            assert math.isnan(got.drop_error), f"{what}: RMSNorm subtracts no mean"
        else:
            norm, x = sites[name].module, kept[name][0][:, chosen].reshape(-1, 32)
            expected = dropped(x, norm.weight, norm.bias, norm.eps).mean()
            assert got.drop_error == pytest.approx(expected, rel=ROUNDED[dtype]), f"{what}: drop_error"


def test_columns_and_directions_are_those_of_the_design():
    s = survey(tiny("gpt2"), [token_ids(3, 7)])
    table = s.table()
    columns = ["kind", "dim", "tokens", "mean_deg", "std_deg", "mean_abs_cos", "occupancy", "mean_norm", "drop_error"]
    assert list(table.columns) == KEYS + columns
    assert s.directions == ("uniform", *(f"signs_{i:03d}" for i in range(30))), "1 and enough signs for a quantile"
    assert set(table.direction) == set(s.directions) and set(table.kind) == {"layer"} and set(table.dim) == {32}
    assert not table.duplicated(KEYS).any() and len(table) == 5 * 2 * 31 * 3
    tokens = table.groupby("positions").tokens.unique()
    assert {name: list(counts) for name, counts in tokens.items()} == {"first": [3], "rest": [18], "all": [21]}


def poisoned(x, place, value):
    x = x.clone()
    x[place] = value
    return x


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0], ids=str)
def test_vectors_without_an_angle_are_counted_reported_and_left_out(value, recwarn):
    """Of length zero: no angle in; and out, LayerNorm of it is β = 0."""
    model, ids = tiny("gpt2").double(), token_ids(2, 5)
    result, place = ng.Survey(model, ["uniform"]), (1, 2, 3) if value else (1, 2)
    (x, y), *_ = stored(model, ["transformer.ln_f"], [ids])["transformer.ln_f"]
    model.transformer.ln_f.register_forward_pre_hook(lambda m, args: (poisoned(args[0], place, value),))
    result.run([ids], progress=False)
    told = [(str(w.message), w.filename) for w in recwarn if "left out" in str(w.message)]
    message = "2 vectors with NaN or Inf entries were left out"
    assert told == ([(message, __file__)] if value else []), "zero vectors need no alarm"
    table = result.table().set_index(KEYS)
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[1, 2] = False
    for side, rows in (("in", x), ("out", y)):
        expected = directly(rows[keep], torch.ones(32))
        assert_rows_equal(table.loc["transformer.ln_f", side, "uniform", "all"], expected, f"ln_f {side}")
    assert table[[*EXACT, "drop_error"]].notna().all(axis=None), "NaN has entered an average"


def test_an_output_alone_that_is_not_finite():
    """The sides are counted apart."""
    model = tiny("gpt2")
    result = ng.Survey(model, ["uniform"])
    model.transformer.ln_f.register_forward_hook(lambda m, args, y: poisoned(y, (1, 2, 3), torch.nan))
    with pytest.warns(UserWarning, match=r"^1 vectors with NaN"):
        result.run([token_ids(2, 5)], progress=False)
    tokens = result.table().set_index(KEYS).tokens.loc["transformer.ln_f"]
    assert (tokens["in", "uniform", "all"], tokens["out", "uniform", "all"]) == (10, 9)


@pytest.mark.parametrize("family", ["gpt2", "t5", "vit"])
def test_the_model_and_the_global_generator_are_left_alone(family):
    model, ids = tiny(family).train(), token_ids(2, 5)
    inputs = {"t5": dict(input_ids=ids, decoder_input_ids=ids), "vit": dict(pixel_values=torch.ones(2, 3, 8, 8))}
    before = torch.get_rng_state()
    survey(model, [inputs.get(family, ids)])
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(m._forward_hooks for m in model.modules())
    assert all(m.training for m in model.modules()) and all(p.grad is None for p in model.parameters())


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
            expected = directly(rows.reshape(-1, 32), unit("random_a", 32, 0))
            assert_rows_equal(table.loc[name, side, "random_a", positions], expected, f"{side}, {positions}")


def test_a_norm_that_not_every_batch_reaches():
    """It counts the batches that did, and the tokens are those of all."""
    x, y = torch.randn(2, 5, 8), torch.randn(3, 4, 8)
    result = survey(Skipping(), [dict(x=x), dict(x=y, both=False)], example_inputs=dict(x=x))
    assert (result.tokens, result.batches) == (22, 2)
    counted = result.table().query("positions == 'all'").groupby("site").tokens.unique()
    assert {name: list(counts) for name, counts in counted.items()} == {"always": [22], "asked": [10]}
    model = Skipping()
    model.always = nn.Identity()
    result = survey(model, [dict(x=x), dict(x=y, both=False)], example_inputs=dict(x=x))
    assert (result.tokens, result.batches) == (10, 2), "a batch that reaches no norm"


def test_drop_error_of_gains_for_each_head():
    """Cohere's LayerNorms of queries and keys have a gain for each head, and no drop error."""
    cohere = tiny("cohere_qk")
    randomise_norms(cohere, [site.module for site in ng.find_norms(cohere)])
    per_head = {site.name for site in ng.find_norms(cohere) if site.weight.dim() > 1}
    assert len(per_head) == 4
    for name, drop in survey(cohere, [token_ids(2, 9)]).table().groupby("site").drop_error:
        assert drop.isna().all() if name in per_head else drop.notna().all(), f"{name}: {drop.iloc[0]}"


def test_a_model_without_norms():
    with pytest.raises(ValueError, match=r"^model: this Sequential runs no LayerNorm or RMSNorm"):
        ng.Survey(nn.Sequential(nn.Linear(8, 8)), example_inputs=torch.zeros(2, 8))


def test_progress_is_shown_where_it_is_wanted(capsys, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    s = ng.Survey(tiny("gpt2"), ["uniform"])
    s.run([token_ids(1, 3)], progress=False)
    assert capsys.readouterr().err == ""
    s.run([token_ids(1, 3)])
    assert "survey" in capsys.readouterr().err
