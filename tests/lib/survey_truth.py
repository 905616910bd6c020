"""The independent truth beside a survey: activations stored through hooks, and numpy in float64 on all of them."""

from __future__ import annotations

import copy

import normgeom as ng
import numpy as np
import torch

COLUMNS = [
    *("site", "side", "direction", "positions", "kind", "dim", "tokens"),
    *("mean_deg", "std_deg", "q05_deg", "q50_deg", "q95_deg", "mean_abs_cos", "occupancy", "mean_norm"),
]
EXACT = ["mean_deg", "std_deg", "mean_abs_cos", "occupancy", "mean_norm"]
QUANTILES = ["q05_deg", "q50_deg", "q95_deg"]


def survey(model, batches, **settings):
    return ng.Survey(model, **settings).run(batches, progress=False)


def stored(model, names, batches):
    """Input and output of the named modules, batch after batch, through hooks of our own."""
    kept = {name: [] for name in names}
    handles = [
        model.get_submodule(name).register_forward_hook(lambda m, a, y, name=name: kept[name].append((a[0], y)))
        for name in names
    ]
    with torch.no_grad():
        for batch in batches:
            model(**batch) if isinstance(batch, dict) else model(batch)
    for handle in handles:
        handle.remove()
    return kept


def directly(rows, direction):
    """The statistics of one table row, from the vectors themselves: arc cosine in float64, numpy."""
    rows, u = rows.double().numpy(), direction.double().numpy()
    norms = np.linalg.norm(rows, axis=-1)
    cos = rows @ u / norms / np.linalg.norm(u)
    degrees = np.degrees(np.arccos(cos))
    q = np.quantile(degrees, [0.05, 0.5, 0.95], method="inverted_cdf")
    return dict(
        tokens=len(rows),
        mean_deg=degrees.mean(),
        std_deg=degrees.std(),
        mean_abs_cos=np.abs(cos).mean(),
        occupancy=rows.shape[-1] * (cos**2).mean(),
        mean_norm=norms.mean(),
        **dict(zip(QUANTILES, q, strict=True)),
    )


def assert_rows_equal(got, expected, tol, what):
    for name in EXACT:
        size = max(1.0, abs(expected[name]))
        assert abs(got[name] - expected[name]) <= tol * size, f"{what}: {name} {got[name]}, directly {expected[name]}"
    for name in QUANTILES:
        assert abs(got[name] - expected[name]) <= 0.25, f"{what}: {name} {got[name]}, directly {expected[name]}"
    assert got["tokens"] == expected["tokens"], f"{what}: {got['tokens']} tokens, directly {expected['tokens']}"


def same_tables(a, b, tol=1e-9, quantiles=1e-9):
    keys = ["site", "side", "direction", "positions", "kind", "dim", "tokens"]
    assert a[keys].equals(b[keys])
    for name in EXACT + QUANTILES:
        x, y = a[name].to_numpy(), b[name].to_numpy()
        assert np.array_equal(np.isnan(x), np.isnan(y)), name
        worst = np.nanmax(np.abs(x - y), initial=0.0)
        allowed = quantiles if name in QUANTILES else tol
        assert worst <= allowed, f"{name}: off by {worst:.1e}, allowed {allowed:.0e}"


def assert_same_state(s, before):
    assert s.tokens == before.tokens
    for now, then in zip(s._state, before._state, strict=True):
        for name, value in vars(then).items():
            assert torch.equal(getattr(now, name), value), f"{name} of the state has changed"


def frozen(s):
    """What the state is now, to compare later."""
    kept = copy.copy(s)
    kept._state = copy.deepcopy(s._state)
    return kept
