"""A survey of a model on a device: the numbers of the CPU, and a host that waits no longer for more norms."""

import normgeom as ng
import pytest
import torch
from norm_checks import draw
from normgeom.models.calls import forward
from normgeom.survey import meter
from normgeom.survey.devices import fetched, sent
from pandas.testing import assert_frame_equal
from pretended_device import DEVICE, Pretended, There
from survey_truth import survey
from tiny_models import tiny, token_ids
from torch import nn

MASK = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0, 0]])
BATCHES = [dict(input_ids=token_ids(2, 9, seed=i), attention_mask=MASK) for i in range(3)]

pytestmark = pytest.mark.filterwarnings("ignore:.*left out, at")


def gpt2(layers=2):
    """In float64: attention is another chain of operations there, and float32 would show its rounding."""
    model = tiny("gpt2", n_layer=layers).double()
    model.config.use_cache = False  # a cache begins with a tensor that is made of a list
    return model


def stack(dtype=torch.float32):
    return nn.Sequential(nn.LayerNorm(12), nn.RMSNorm(12), nn.LayerNorm(12)).to(dtype)


def strange(rows=7, dtype=torch.float32):
    """Also vectors with NaN or Inf, of length zero, constant, with a huge mean, and of very large and small entries."""
    x = draw(3, rows, 12, dtype=torch.float32)
    x[0, 0, 1], x[0, 2, 3], x[1, 1, 0], x[1, 0], x[2, 3] = torch.nan, torch.inf, -torch.inf, 0.0, 0.7
    x[1, 2:4] += 1e6
    x[2, 0] *= 1e30
    x[2, 1] *= 1e-30
    return x.to(dtype)


CASES = {
    "padding": (gpt2, BATCHES, ["uniform", "random_a"]),
    "matched directions": (gpt2, BATCHES, ["uniform", "matched_a"]),
    "strange vectors": (stack, [strange(), strange(4)], ["uniform", "matched_a"]),
    "sixteen bits": (lambda: stack(torch.bfloat16), [strange(dtype=torch.bfloat16)], ["uniform", "signs_a"]),
}


@pytest.mark.parametrize(("make", "batches", "directions"), CASES.values(), ids=CASES)
def test_the_table_is_that_of_the_cpu(make, batches, directions, tmp_path):
    """Made on either, measured there, saved and read again."""
    model, settings = make(), dict(directions=directions, example_inputs=batches[0], pilot=batches[0])
    here, begun = survey(model, batches, **settings), ng.Survey(model, **settings)
    with Pretended():
        model.to(DEVICE)
        for there in (begun, ng.Survey(model, **settings)):
            there.run(batches, progress=False)
            assert {type(t) for tally in there._tallies for t in vars(tally).values()} == {There}
            assert there.excluded().equals(here.excluded()) and there.tokens == here.tokens
            there.save(tmp_path / "s.npz")
            for result in (there, ng.Survey.load(tmp_path / "s.npz")):
                assert_frame_equal(result.table(), here.table(), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("first", [1, 2], ids="{} batches before".format)
def test_a_state_moves_with_its_model(first):
    whole, moving = survey(model := gpt2(), BATCHES), survey(model, BATCHES[:first])
    with Pretended():
        model.to(DEVICE)
        moving.run(BATCHES[first:], progress=False)
        assert_frame_equal(moving.table(), whole.table(), rtol=1e-12, atol=1e-11)
        twice = moving.merge(whole).table()
    assert twice.tokens.tolist() == [2 * n for n in whole.table().tokens]


@pytest.fixture
def waits(tmp_path):
    """For each step of a survey of a model with so many layers, what the host waits for."""

    def of(layers):
        model, found = gpt2(layers), {}
        result = ng.Survey(model)
        with Pretended() as device:
            model.to(DEVICE)
            steps = {
                "the model alone": lambda: forward(model, BATCHES[0]),
                "first batch": lambda: result._measure(BATCHES[0], ""),
                "second batch": lambda: result._measure(BATCHES[1], ""),
                "end of a run": lambda: result.run([], progress=False),
                "table": result.table,
                "save": lambda: result.save(tmp_path / "s.npz"),
            }
            for name, step in steps.items():
                device.waits.clear()
                step()
                found[name] = [*device.waits]
        return found

    return of


@pytest.mark.parametrize("layers", [1, 4])
def test_measuring_adds_no_wait(waits, layers):
    """At 3 norms and at 9; and what leaves the device goes together, one copy a dtype."""
    found = waits(layers)
    alone = found.pop("the model alone")
    once, twice = ["aten::_to_copy"], ["aten::_to_copy"] * 2
    assert found == {"first batch": alone, "second batch": alone, "end of a run": once, "table": twice, "save": twice}


def test_a_decision_of_the_host_is_seen(waits, monkeypatch):
    """The near miss: a second look where something is lost, at each norm."""

    def deciding(x, columns):
        found = project(x, columns)
        return found if found[1].isfinite().all() else project(x.double(), columns)

    project = meter.project
    monkeypatch.setattr(meter, "project", deciding)
    for layers, sides in ((1, 6), (4, 18)):
        found = waits(layers)
        assert len(found["second batch"]) - len(found["the model alone"]) == sides


def test_fetched_keeps_order_shape_and_dtype():
    here = [torch.arange(6).view(2, 3), draw(4, 1), torch.arange(2), draw(0, 3), torch.tensor(3.0)]
    with Pretended() as device:
        given = [here[0], *(sent(t, DEVICE) for t in here[1:])]
        assert device.waits == []
        back = fetched(given)
        assert device.waits == ["aten::_to_copy"] * 3, "of float64, int64 and float32 each together"
    assert back[0] is here[0], "what is on the CPU stays as it is"
    for got, expected in zip(back, here, strict=True):
        assert torch.equal(got, expected) and got.dtype == expected.dtype


def test_what_comes_to_the_cpu_is_waited_for():
    with Pretended() as device:
        there = sent(draw(3), DEVICE)
        sent(there, torch.device("cpu"))
        assert len(device.waits) == 1
