"""Streams of published models, tried on tiny ones: lenses and steering against whole runs by hand."""

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from drawn_weights import perturbed
from normgeom.models.watch import hooked
from test_real_attribution import FAMILIES

from experiments import real_attribution, real_streams

MIDDLE = 2  # of four blocks


def windows(_tokenizer, part, count, length):
    """Other ids for each text, drawn among fewer tokens in the second; at most 96 windows."""
    generator = torch.Generator().manual_seed(len(part))
    return torch.randint(30 if part == "test" else 50, (min(count, 96), length), generator=generator)


@pytest.fixture(params=FAMILIES)
def model(request, monkeypatch):
    made = perturbed(FAMILIES[request.param])
    for module in (real_attribution, real_streams):
        monkeypatch.setattr(module, "language_model", lambda name: (made, None))
        monkeypatch.setattr(module, "blocks", windows)
    monkeypatch.setattr(real_streams, "EVERY", 2)
    return made


@torch.no_grad()
def read_by_blocks(model, ids):
    """What blocks read, what the final norm reads and writes, without first positions, and the logits."""
    end = []
    with hooked(before=[(model.model.norm, lambda module, args, kwargs: end.append(args[0]))]):
        run = model(ids, output_hidden_states=True)
    *h, y = (state[:, 1:].flatten(0, 1) for state in run.hidden_states)
    return [*h, end[0][:, 1:].flatten(0, 1)], y, run.logits[:, 1:].flatten(0, 1)


def rms(x):
    return (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def kl(truth, log_q):
    return float(F.kl_div(log_q, truth.log_softmax(-1), log_target=True, reduction="batchmean"))


def test_lenses_are_whole_runs_read_by_hand(model):
    found, end = real_streams.lens("tiny", "valid"), model.model.norm
    ids, other = windows(None, "valid", 40, 11)[:, :-1], windows(None, "test", 96, 10)
    (h, _, truth), (fit, y, _) = read_by_blocks(model, ids), read_by_blocks(model, other[::2])
    with torch.no_grad():
        for i, row in found.iterrows():
            z, s, last = model.lm_head(end(h[i])), rms(h[i]), rms(h[-1])
            n, target = (torch.cat([v / rms(v), torch.ones(len(v), 1)], 1) for v in (h[i], fit[i]))
            linear = model.lm_head(n @ torch.linalg.lstsq(target, y).solution)
            lenses = dict(own=z, final=z * s / last, mean=z * s / rms(fit[-1]).mean(), fitted=linear)
            for lens, logits in lenses.items():
                assert row[lens] == pytest.approx(kl(truth, logits.log_softmax(-1)), rel=3e-3, abs=3e-4), (i, lens)
    assert row.fitted < 1e-3, "at the end the map is the final norm's gain"
    counts = torch.tensor([(other[:, 1:] == token).sum() for token in range(50)])
    guess = 0.9 * counts / counts.sum() + 0.1 / 50
    assert row.frequency == pytest.approx(kl(truth, guess.log().expand_as(truth)), abs=1e-3)
    assert row.uniform == pytest.approx(kl(truth, torch.full_like(truth, 1 / 50).log()), abs=1e-3)


def test_steering_is_a_whole_run_with_a_longer_stream(model):
    rows = real_streams.steering("tiny", "valid")
    found = {(row["direction"], row["alpha"], row["of"]): row["moved"] for row in rows}
    ids, documented = windows(None, "valid", 40, 11)[:, :-1], windows(None, "stdlib", 40, 10)
    here, there = (read_by_blocks(model, texts)[0][MIDDLE] for texts in (ids, documented))
    v = here.norm(dim=-1).mean() * F.normalize(there.mean(0) - here.mean(0), dim=0)

    def moved(alpha):
        add = lambda module, args, kwargs: ((args[0] + alpha * v * (torch.arange(10) > 0)[:, None],), kwargs)  # noqa: E731
        with torch.no_grad(), hooked(before=[(model.model.layers[MIDDLE], add)]):
            after = model(ids, use_cache=False).logits[:, -1]
        with torch.no_grad():
            change = after - model(ids, use_cache=False).logits[:, -1]
        return change.std(-1, correction=0).median().item()

    for alpha in (1 / 16, 1):
        assert found["text", alpha, "live"] == pytest.approx(moved(alpha), rel=1e-3)
        with ng.held_scales(model, ids):
            assert found["text", alpha, "held"] == pytest.approx(moved(alpha), rel=1e-3)
    assert all(row["low"] <= row["moved"] <= row["high"] for row in rows) and found["random", 4, "ratio"] > 1
