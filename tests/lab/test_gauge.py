"""Changes of gauge: LayerNorm networks do not see them, RMSNorm networks do."""

import math

import normgeom as ng
import pytest
import torch
from norm_checks import close, rounding
from normgeom.models.flow import stream_writers
from normgeom.models.gpt2 import gpt2
from normgeom_lab.common.tiny import shaken
from normgeom_lab.inference import onto_uniform, rotated, scenarios, turned, with_means_of
from tiny_models import tiny, token_ids

CONFIG = gpt2(vocabulary=64, length=16, width=12, layers=2, heads=2)
IDS = token_ids(2, 8)


def pair(which):
    """A twin and another of the same sizes, in float64, both away from their start."""
    return [shaken(ng.twins(CONFIG, seed)[which].double(), 0.2, seed) for seed in (3, 4)]


def hidden(model):
    with torch.no_grad():
        return model.transformer(IDS).last_hidden_state


def test_the_means_are_the_other_s_and_the_rest_stays():
    model, other = pair(0)
    before = [p.clone() for p in stream_writers(model)]
    changed = with_means_of(model, other)
    centre = torch.eye(12, dtype=torch.float64) - 1 / 12
    for new, mine, theirs in zip(stream_writers(changed), before, stream_writers(other), strict=True):
        bound = 4 * rounding(mine, torch.float64)
        close(new.mean(-1), theirs.mean(-1), bound, "means", "The model's own? Of the other axis?")
        close(new @ centre, mine @ centre, bound, "what is orthogonal to 1", "More than the mean was changed?")
    for p, q in zip(stream_writers(model), before, strict=True):
        assert torch.equal(p, q), "the model itself was changed"


def test_only_a_layer_norm_network_stays_the_same():
    for which, same in ((0, True), (1, False)):
        model, other = pair(which)
        off = float((hidden(with_means_of(model, other)) - hidden(model)).abs().max())
        bound = 4 * 20 * rounding(hidden(model), torch.float64, 12)
        assert (off <= bound) == same, f"what leaves the last norm moved by {off:.1e}"


def test_all_writers_and_nothing_else():
    model, other = pair(0)
    changed = dict(with_means_of(model, other).named_parameters())
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, changed[name])}
    names = {id(p): name for name, p in model.named_parameters()}
    assert moved == {names[id(p)] for p in stream_writers(model)}


def test_models_that_do_not_fit():
    model, _ = pair(0)
    wide = ng.twins(gpt2(vocabulary=64, length=16, width=16, layers=2, heads=2), 3)[0]
    with pytest.raises(ValueError, match=r"^other: expected a model of the same sizes"):
        with_means_of(model, wide)
    with pytest.raises(ValueError, match=r"^model: expected a GPT-2 or its like, .*, got a GPTNeoXForCausalLM"):
        with_means_of(tiny("gpt_neox"), model)


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_turning_by_hand(which):
    """Against a copy whose embedding is moved in place and hooks of our own."""
    model, _ = pair(which)
    found = turned(model, [0.0, 0.7], IDS)
    assert list(found.columns) == ["c", "angle at the last norm / degrees", "change of output"]
    assert found.c.tolist() == [0.0, 0.7]
    moved, seen = ng.twins(CONFIG, 3)[which].double(), []
    moved.load_state_dict(model.state_dict())
    moved.transformer.ln_f.register_forward_hook(lambda module, args, y: seen.append(args[0]))
    with torch.no_grad():
        moved.transformer.wte.weight += 0.7
    change = float((hidden(moved) - hidden(model)).norm() / hidden(model).norm())
    rows = seen[0][:, 1:].flatten(0, 1)
    angles = torch.acos(rows.sum(-1) / rows.norm(dim=-1) / math.sqrt(12)).rad2deg()
    row = found.iloc[1]
    assert row["angle at the last norm / degrees"] == pytest.approx(float(angles.mean()), abs=1e-5), "first positions?"
    assert row["change of output"] == pytest.approx(change, abs=1e-12)
    assert (row["change of output"] < 1e-12) == (which == 0), "LayerNorm must not see it, RMSNorm must"
    assert found["change of output"][0] == 0 and found["angle at the last norm / degrees"][0] > row.iloc[1] + 5


def test_turning_leaves_the_model_as_it_was():
    model, _ = pair(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    turned(model, [1.0], IDS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_constant():
    with pytest.raises(ValueError, match=r"^constants: expected at least one, got none$"):
        turned(pair(0)[0], [], IDS)


def at_last(model):
    """What enters the last norm, rows of it, first positions left out."""
    seen = []
    hook = model.transformer.ln_f.register_forward_hook(lambda module, args, y: seen.append(args[0]))
    with torch.no_grad():
        model(IDS)
    hook.remove()
    return seen[0][:, 1:].flatten(0, 1)


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def drawn_rotation(d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0]


def test_a_rotated_stream_and_the_same_function():
    """Of an RMSNorm network with gains and a tied head; every vector of the stream is turned."""
    model, _ = pair(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Q = drawn_rotation(12)
    other = rotated(model, Q)
    assert float((logits(other) - logits(model)).abs().max()) < 1e-10, "a reader forgotten? the head? gains not folded?"
    turned_rows = at_last(model) @ Q.T
    assert float((at_last(other) - turned_rows).abs().max()) < 1e-11 * float(turned_rows.abs().max())
    assert float((turned_rows - at_last(model) @ Q).abs().max()) > 0.01, "the test could not tell Q from its inverse"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_cannot_be_rotated():
    layer, rms = (pair(which)[0] for which in (0, 1))
    Q = drawn_rotation(12)
    with pytest.raises(ValueError, match=r"^model: expected RMSNorm throughout"):
        rotated(layer, Q)
    with pytest.raises(ValueError, match=r"^rotation: expected shape \(12, 12\), got \(11, 11\)"):
        rotated(rms, drawn_rotation(11))
    with pytest.raises(ValueError, match=r"^rotation: expected an orthogonal matrix"):
        rotated(rms, 1.001 * Q)
    with pytest.raises(ValueError, match=r"^model: expected a GPT-2 or its like"):
        rotated(tiny("llama"), Q)


@pytest.mark.parametrize("d", [2, 3, 50])
def test_a_direction_is_reflected_onto_one(d):
    u = torch.arange(d, dtype=torch.float64) - 0.4
    Q = onto_uniform(7 * u)
    one = torch.ones(d, dtype=torch.float64) / d**0.5
    assert float((Q @ u / u.norm() - one).abs().max()) < 1e-14
    assert float((Q @ Q - torch.eye(d, dtype=torch.float64)).abs().max()) < 1e-14
    already = onto_uniform(torch.ones(d, dtype=torch.float64)) @ one
    assert float((already - one).abs().max()) < 1e-14, "what lies there stays there"


@pytest.mark.parametrize("direction", [torch.zeros(3), torch.ones(2, 2)], ids=["zero", "a matrix"])
def test_no_direction(direction):
    with pytest.raises(ValueError, match=r"^direction: expected a vector that is not 0"):
        onto_uniform(direction)


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_least_and_most_along_one(which):
    """Against shares written out; RMSNorm's ends against singular values."""
    model, _ = pair(which)
    table = scenarios(model, IDS, c=1e4)
    assert list(table.index) == ["as trained", "least along 1", "most along 1"]
    assert table["change of log p"].max() < 1e-9 and table["change of log p"]["as trained"] == 0
    rows = at_last(model)
    rows = rows / rows.norm(dim=-1, keepdim=True)
    assert table.share["as trained"] == pytest.approx(float((rows.sum(-1) ** 2 / 12).mean()), rel=1e-12)
    values = torch.linalg.svdvals(rows).square() / len(rows)
    least, most = (0, 1) if which == 0 else (float(values[-1]), float(values[0]))
    assert table.share["least along 1"] == pytest.approx(least, abs=1e-12)
    assert table.share["most along 1"] == pytest.approx(most, abs=1e-5 if which == 0 else 1e-12)


def test_norms_of_both_kinds():
    model, _ = pair(0)
    ng.drop_mean_subtraction(model, ["transformer.ln_f"])
    with pytest.raises(ValueError, match=r"^model: expected norms of one kind, got layer, rms$"):
        scenarios(model, IDS)
