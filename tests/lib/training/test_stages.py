"""What is measured of a model in training, against direct computation."""

import random

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from norm_checks import close
from normgeom.training import stages
from normgeom.training.stages import held_out_loss, measure_stage, surface
from normgeom.training.twins import variants
from survey_truth import stored
from tiny_models import randomise_norms, token_ids
from torch import nn
from transformers import GPT2Config

# ε as large as the variance of embeddings of that size: without it, every output would lie on the surface
CONFIG = GPT2Config(
    vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, layer_norm_epsilon=4e-4, resid_pdrop=0.5,
    bos_token_id=None, eos_token_id=None,
)  # fmt: skip
BATCHES = [token_ids(3, 11), token_ids(1, 20, seed=1), token_ids(2, 5, seed=2)]
DIRECTIONS = ("uniform", "signs_a")
NAMES = ["transformer.h.0.ln_1", "transformer.h.0.ln_2", "transformer.h.1.ln_1", "transformer.h.1.ln_2"]


def network(norm):
    """In float64; gains and shifts are drawn, half of the embeddings are long and all have a mean."""
    model = variants(CONFIG, 3, (norm,))[norm]
    randomise_norms(model, [module for module in model.modules() if isinstance(module, (nn.LayerNorm, ng.RMSNorm))])
    embedding = model.transformer.wte.weight.data
    embedding[:32] *= 10
    embedding += embedding.std(1, keepdim=True)
    return model.double()


@pytest.fixture(scope="module", params=["layer", "rms"])
def measured(request):
    model = network(request.param)
    return request.param, model, measure_stage(model, BATCHES, DIRECTIONS, 5)


def by_hand(model):
    """Minus the logarithm of the probability of each token that is predicted, in float64."""
    found = []
    with torch.no_grad():
        for ids in BATCHES:
            probability = model(ids).logits.exp()
            probability /= probability.sum(-1, keepdim=True)
            for row in range(len(ids)):
                for place in range(1, ids.shape[1]):
                    found.append(-probability[row, place - 1, ids[row, place]].log())
    return torch.stack(found)


def test_the_loss_is_a_mean_over_tokens(measured):
    """Batches of 30, 19 and 8 predictions: not a mean over batches, not over windows."""
    _, model, tables = measured
    expected = by_hand(model)
    assert len(expected) == 57
    got = tables["loss"]
    assert list(got.columns) == ["loss"] and len(got) == 1
    close(torch.tensor(got.loss[0]), expected.mean(), 1e-6, "loss", "A mean over batches? L instead of L − 1?")
    assert held_out_loss(model, iter(BATCHES)) == got.loss[0]


def test_gains_are_the_parameters(measured):
    norm, model, tables = measured
    gains = tables["gains"]
    assert list(gains.columns) == ["site", "coordinate", "weight", "bias"] and len(gains) == 5 * 32
    for site, rows in gains.groupby("site", sort=False):
        module = model.get_submodule(site)
        assert list(rows.coordinate) == list(range(32))
        close(torch.tensor(rows.weight.to_numpy()), module.weight, 1e-6, f"gain of {site}", "Another order?")
        bias = module.bias if norm == "layer" else torch.zeros(32)
        close(torch.tensor(rows.bias.to_numpy()), bias, 1e-6, f"bias of {site}", "Another order?")
    assert list(gains.site.unique()) == [*NAMES, "transformer.ln_f"], "not in the order in which they run"


def radii(norm, x, eps):
    """‖n‖/√d by its formula, of each token."""
    x = x.numpy().reshape(-1, 32)
    if norm == "layer":
        x = x - x.mean(1, keepdims=True)
    n = x / np.sqrt((x * x).sum(1, keepdims=True) / 32 + eps)
    return np.sqrt((n * n).sum(1) / 32)


def test_the_distance_to_the_surface(measured):
    norm, model, tables = measured
    table = tables["surface"].set_index("site")
    assert list(table.columns) == ["q05", "q50", "q95", "near"] and list(table.index) == [*NAMES, "transformer.ln_f"]
    inputs = stored(model, table.index, BATCHES)
    shares = []
    for site, row in table.iterrows():
        truth = np.concatenate([radii(norm, x, CONFIG.layer_norm_epsilon) for x, _ in inputs[site]])
        assert len(truth) == 63
        expected = [*np.quantile(truth, [0.05, 0.5, 0.95]), (truth >= 0.95).mean()]
        close(
            torch.tensor(row.to_numpy()), torch.tensor(expected), 1e-9, site, "ε left out? Mean of LayerNorm left in?"
        )
        shares.append(row.near)
    assert table.q05.max() < 0.9, "ε is too small to see that it is there"
    assert min(shares) > 0.2 and max(shares) < 0.8, "all are near the surface, or none is"


def test_what_is_held_of_the_surface_is_bounded(monkeypatch):
    model = network("rms")
    sites = ng.find_norms(model)
    batches = [token_ids(2, 8, seed=i) for i in range(4)]
    for most, count in ((1, 1), (16, 1), (47, 2), (48, 3), (2**16, 4)):
        monkeypatch.setattr(stages, "_MOST", most)
        got = measure_stage(model, batches, DIRECTIONS, 5)["surface"]
        pd.testing.assert_frame_equal(
            got, surface(model, batches[:count], sites), check_exact=True, obj=f"{most} tokens"
        )


def test_the_survey_is_that_of_a_survey(measured):
    _, model, tables = measured
    expected = ng.Survey(model, DIRECTIONS, 5).run(BATCHES, progress=False).table()
    pd.testing.assert_frame_equal(tables["survey"], expected, check_exact=True)


@pytest.mark.parametrize("norm", ["none", "centre", "centre-plain"])
def test_a_model_without_norms(norm):
    model = variants(CONFIG, 3, (norm,))[norm].double()
    tables = measure_stage(model, BATCHES, DIRECTIONS, 5)
    close(torch.tensor(tables["loss"].loss[0]), by_hand(model).mean(), 1e-6, "loss", "Of another model?")
    assert [name for name, table in tables.items() if table.empty] == ["survey", "gains", "surface"]


@pytest.mark.parametrize("length", [2, 3])
def test_windows_of_few_tokens(length):
    config = GPT2Config(**{**CONFIG.to_dict(), "n_positions": length})
    tables = measure_stage(variants(config, 3, ("rms",))["rms"], [token_ids(1, length)], DIRECTIONS, 5)
    assert set(tables["survey"].tokens) <= {1, length - 1, length} and len(tables["surface"]) == 5


@pytest.mark.parametrize("training", [True, False])
def test_nothing_changes(training):
    """Weights, modes, gradients, hooks, random numbers; with a dropout of 0.5, loss and survey are those without."""
    model = network("layer").train(training)
    model.transformer.h[1].train(not training)
    model(BATCHES[0], labels=BATCHES[0]).loss.backward()

    def state():
        return (
            {name: value.clone() for name, value in model.state_dict().items()},
            {name: p.grad.clone() for name, p in model.named_parameters()},
            [(module.training, len(module._forward_hooks)) for module in model.modules()],
            [p.requires_grad for p in model.parameters()],
            (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()),
        )

    before = state()
    tables = measure_stage(model, BATCHES, DIRECTIONS, 5)
    after = state()
    for name in before[0]:
        assert torch.equal(before[0][name], after[0][name]), f"{name} has changed"
    for name in before[1]:
        assert torch.equal(before[1][name], after[1][name]), f"the gradient of {name} has changed"
    assert before[2] == after[2], "modes or hooks"
    assert before[3] == after[3], "requires_grad"
    assert torch.equal(before[4][0], after[4][0]), "torch's generator moved: the next dropout would be another"
    assert before[4][1] == after[4][1] and np.array_equal(before[4][2], after[4][2])
    for name, table in measure_stage(network("layer"), BATCHES, DIRECTIONS, 5).items():
        pd.testing.assert_frame_equal(tables[name], table, check_exact=True, obj=name)


def test_modes_come_back_after_an_error():
    model = network("layer").train()
    handle = model.transformer.ln_f.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        held_out_loss(model, BATCHES)
    handle.remove()
    assert all(module.training for module in model.modules())
