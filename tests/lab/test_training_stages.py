"""What is measured of a model in training, against direct computation."""

import random

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from norm_checks import close
from normgeom.models.twins import twin
from normgeom_lab.training import DIRECTIONS, measure_stage
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
SITES = [f"transformer.{name}" for name in ("h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f")]


def network(norm):
    """In float64; gains and shifts are drawn, half of the embeddings are long and all have a mean."""
    model = twin(CONFIG, 3, norm)
    randomise_norms(model, [module for module in model.modules() if isinstance(module, (nn.LayerNorm, ng.RMSNorm))])
    embedding = model.transformer.wte.weight.data
    embedding[:32] *= 10
    embedding += embedding.std(1, keepdim=True)
    return model.double()


@pytest.fixture(scope="module", params=["layer", "rms"])
def measured(request):
    model = network(request.param)
    return request.param, model, measure_stage(model, BATCHES, 5)


@torch.no_grad()
def by_hand(model):
    """Minus the logarithm of the probability of each token that is predicted."""
    found = [model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).flatten() for ids in BATCHES]
    return -torch.cat(found)


def test_the_loss_is_a_mean_over_tokens(measured):
    """Batches of 30, 19 and 8 predictions: not a mean over batches, not over windows."""
    _, model, tables = measured
    expected = by_hand(model)
    assert len(expected) == 57 and list(tables["loss"].columns) == ["loss"] and len(tables["loss"]) == 1
    close(torch.tensor(tables["loss"].loss[0]), expected.mean(), 1e-12, "loss", "A mean over batches? L, not L - 1?")


def test_gains_are_the_parameters(measured):
    _, model, tables = measured
    gains = tables["gains"]
    assert list(gains.columns) == ["site", "weight"] and len(gains) == 5 * 32
    assert list(gains.site.unique()) == SITES, "not in the order in which they run"
    for site, rows in gains.groupby("site", sort=False):
        close(torch.tensor(rows.weight.to_numpy()), model.get_submodule(site).weight, 1e-6, site, "Another order?")


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
    assert list(table.columns) == ["q05", "near"] and list(table.index) == SITES
    inputs = stored(model, table.index, BATCHES)
    for site, row in table.iterrows():
        truth = np.concatenate([radii(norm, x, CONFIG.layer_norm_epsilon) for x, _ in inputs[site]])
        assert len(truth) == 63
        expected = torch.tensor([np.quantile(truth, 0.05), (truth >= 0.95).mean()])
        close(torch.tensor(row.to_numpy()), expected, 1e-9, site, "ε left out? Mean of LayerNorm left in?")
    assert table.q05.max() < 0.9, "ε is too small to see that it is there"
    assert table.near.min() > 0.2 and table.near.max() < 0.8, "all are near the surface, or none is"


def test_the_survey_is_that_of_a_survey(measured):
    _, model, tables = measured
    expected = ng.Survey(model, DIRECTIONS, 5).run(BATCHES, progress=False).table()
    pd.testing.assert_frame_equal(tables["survey"], expected, check_exact=True)


def test_a_model_without_norms():
    model = twin(CONFIG, 3, "layer").double()
    for site in SITES:
        model.set_submodule(site, nn.Identity())
    tables = measure_stage(model, BATCHES, 5)
    assert list(tables) == ["loss"] and tables["loss"].loss[0] == pytest.approx(float(by_hand(model).mean()))


def test_windows_of_two_tokens():
    config = GPT2Config(**{**CONFIG.to_dict(), "n_positions": 2})
    tables = measure_stage(twin(config, 3, "rms"), [token_ids(1, 2)], 5)
    assert set(tables["survey"].tokens) <= {1, 2} and len(tables["surface"]) == 5


@pytest.mark.parametrize("training", [True, False])
def test_nothing_changes(training):
    """Weights, modes, gradients, hooks, random numbers; with a dropout of 0.5, all tables are those without."""
    model = network("layer").train(training)
    model.transformer.h[1].train(not training)
    model(BATCHES[0], labels=BATCHES[0]).loss.backward()

    def state():
        tensors = [tensor.clone() for p in model.parameters() for tensor in (p, p.grad)]
        modules = [(module.training, len(module._forward_hooks)) for module in model.modules()]
        generators = (*torch.get_rng_state().tolist(), random.getstate(), *np.random.get_state()[1])
        return tensors, (modules, [p.requires_grad for p in model.parameters()], generators)

    before = state()
    tables = measure_stage(model, BATCHES, 5)
    after = state()
    assert before[1] == after[1], "modes, hooks, requires_grad or generators"
    assert all(map(torch.equal, before[0], after[0])), "weights or gradients"
    for name, table in measure_stage(network("layer"), BATCHES, 5).items():
        pd.testing.assert_frame_equal(tables[name], table, check_exact=True, obj=name)
