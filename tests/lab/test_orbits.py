"""Flips of signs along the stream: exact for RMSNorm, and seen by LayerNorm."""

import copy
import itertools

import normgeom as ng
import pytest
import torch
from norm_checks import close
from normgeom.models.gpt2 import gpt2
from normgeom.training.loop import train
from normgeom.training.twins import variants
from normgeom_lab.common.tiny import shaken
from normgeom_lab.training import (
    descend,
    either_order,
    flipped,
    moved,
    next_token_loss,
    occupancies,
    orbit,
    share_along_one,
    sign_vectors,
    trained,
    turned,
    unbiased_twins,
)
from tiny_models import token_ids

CONFIG = gpt2(vocabulary=64, length=16, width=6, layers=2, heads=2)
IDS = token_ids(3, 8)
SIGNS = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0, 1.0])
TEXTS = [(IDS + 5 * i) % 64 for i in range(3)]


def network(which, seed=3):
    return shaken(ng.twins(CONFIG, seed)[which], 0.3, seed)


def logits_and_stream(model):
    seen = []
    sites = ng.find_norms(model, IDS)
    with torch.no_grad(), ng.watch(model, sites, lambda site, x_in, x_out: seen.append(x_in.clone())):
        return model(IDS).logits, torch.stack(seen)


@pytest.mark.parametrize(("which", "same"), [(1, True), (0, False)], ids=["rms norm", "layer norm"])
def test_no_output_changes_and_the_stream_is_flipped(which, same):
    """Matrix products add the same numbers, some with both factors' signs changed: no bit differs."""
    model = network(which)
    (logits, stream), (others, turned) = logits_and_stream(model), logits_and_stream(flipped(model, SIGNS))
    assert torch.equal(others, logits) == same, "a writer, a reader or the head was not flipped"
    assert torch.equal(turned, stream * SIGNS) == same


def test_a_head_of_its_own_reads_what_is_flipped():
    model = unbiased_twins(CONFIG, 3)[1]
    assert torch.equal(logits_and_stream(flipped(model, SIGNS))[0], logits_and_stream(model)[0]), "the head is a reader"


def test_the_bias_of_a_norm_is_flipped_and_its_gain_is_not():
    model = network(0)
    before, after = model.transformer.ln_f, flipped(model, SIGNS).transformer.ln_f
    assert torch.equal(after.bias, before.bias * SIGNS) and torch.equal(after.weight, before.weight)


def test_two_flips_are_none():
    model = network(1)
    again = flipped(flipped(model, SIGNS), SIGNS).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("signs", [torch.ones(5), torch.tensor([1.0, -1, 2, 1, 1, 1]), torch.zeros(6)])
def test_signs_that_are_none(signs):
    with pytest.raises(ValueError, match=r"^signs: expected 6 entries of 1 and −1, got tensor"):
        flipped(network(1), signs)


def rotation(d, seed=3):
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))[0]


@pytest.mark.parametrize(("norm", "same"), [("rms-plain", True), ("layer-plain", False)])
def test_a_turned_stream(norm, same):
    """Every vector of the stream is turned, not turned back, and no output changes; the head's own matrix too."""
    model = shaken(variants(CONFIG, 3, (norm,))[norm].double(), 0.3, 3)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 0.1)
    q = rotation(6)
    (logits, stream), (others, turns) = logits_and_stream(model), logits_and_stream(turned(model, q))
    assert torch.allclose(others, logits, atol=1e-12) == same, "a writer, a reader or the head was not turned"
    assert torch.allclose(turns, stream @ q.T, atol=1e-12) == same


def test_either_order_is_both_by_hand():
    start = moved(CONFIG, "rms", 3)

    def rule(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    def scaled(model, way):
        model = copy.deepcopy(model)
        with torch.no_grad():
            model.transformer.wpe.weight.mul_(way)
        return model

    way = torch.tensor(3.0)
    first = descend(scaled(start, way), IDS, rule, clip=1.0).model
    last = scaled(descend(start, IDS, rule, clip=1.0).model, way)
    for got, model in zip(either_order(start, IDS, rule, scaled, way), (first, last), strict=True):
        assert torch.equal(got, torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.equal(*either_order(start, IDS, rule, scaled, way)), "one of both twice"


def test_what_is_moved_is_away_from_its_start():
    plain, start = variants(CONFIG, 3, ("rms",))["rms"].state_dict(), moved(CONFIG, "rms", 3)
    for name, p in start.state_dict().items():
        off = (p - plain[name]).std()
        assert p.dtype == torch.float64 and 0.1 < float(off) < 0.35, f"{name} moved by {off:.2f}"


@pytest.mark.parametrize("matrix", [torch.eye(5), 2 * torch.eye(6), torch.ones(6, 6)])
def test_matrices_that_are_no_rotation(matrix):
    with pytest.raises(ValueError, match=r"^rotation: expected an orthogonal matrix of size 6, got \(\d, \d\)$"):
        turned(network(1), matrix)


@pytest.mark.parametrize("d", [2, 3, 6])
def test_each_vector_of_signs_once_up_to_its_negative(d):
    rows = [tuple(row) for row in sign_vectors(d).tolist()]
    assert rows[0] == (1.0,) * d, "1 comes first"
    both = [*rows, *(tuple(-x for x in row) for row in rows)]
    assert sorted(both) == sorted(itertools.product((-1.0, 1.0), repeat=d))
    with pytest.raises(ValueError, match=r"^d: expected at least 2, got 1$"):
        sign_vectors(1)


def test_training_is_train_on_the_batches_in_turn():
    model = network(1)
    got = trained(model, TEXTS, 5)
    expected = network(1)
    train(expected, [TEXTS[i % 3] for i in range(5)], 5, 3e-3, description=None)
    for p, q in zip(got.parameters(), expected.parameters(), strict=True):
        assert torch.equal(p, q)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), network(1).parameters(), strict=True)), "no copy"
    with pytest.raises(ValueError, match=r"^batches: expected at least one, got none$"):
        trained(model, [], 5)


def test_an_orbit_is_each_flip_trained():
    config = gpt2(vocabulary=64, length=16, width=4, layers=1, heads=2)
    start = ng.twins(config, 3)[1]
    networks = orbit(start, TEXTS, 2)
    assert len(networks) == 8
    for signs, model in zip(sign_vectors(4), networks, strict=True):
        expected = flipped(trained(start, TEXTS, 2), signs)  # RMSNorm: in either order
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), expected.parameters(), strict=True))


def test_occupancies_are_those_of_the_survey():
    model = network(1)
    vectors = torch.stack([torch.ones(6), 3 * SIGNS, torch.arange(6.0)])
    found = occupancies(model, IDS, vectors)
    survey = ng.Survey(model, {"uniform": None, "b": vectors[1], "c": vectors[2]}, example_inputs=IDS)
    table = survey.run([IDS], progress=False).table()
    table = table[(table.site == "transformer.ln_f") & (table.side == "in") & (table.positions == "all")]
    expected = torch.tensor(table.occupancy.to_numpy())
    close(found, expected, 1e-6, "occupancies", "Another norm? Its output? The vectors' lengths? The factor d?")


def test_the_share_is_that_of_a_projection():
    model = network(1)
    matrix = model.transformer.h[-1].mlp.c_proj.weight
    next_token_loss(model, IDS).backward()
    unit = torch.full((6, 1), 6**-0.5)
    expected = (matrix.grad @ unit).norm() ** 2 / matrix.grad.norm() ** 2
    assert share_along_one(model, IDS) == pytest.approx(float(expected), rel=1e-4), "another writer, or another axis?"


def test_shares_of_all_signs_add_up():
    """The mean over all flips of an untrained network is 1/d: cor-gradient-share without a training."""
    model = network(1)
    shares = [share_along_one(flipped(model, signs), IDS) for signs in sign_vectors(6)]
    assert sum(shares) / len(shares) == pytest.approx(1 / 6, rel=1e-5)
    assert max(shares) > 2 * min(shares), "they are all alike: nothing was averaged"
