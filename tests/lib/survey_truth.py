"""The independent truth beside a survey: activations stored through hooks, and numpy in float64 on all of them."""

from __future__ import annotations

import copy

import normgeom as ng
import numpy as np
import torch
from torch import nn

KEYS = ["site", "side", "direction", "positions"]
EXACT = ["mean_deg", "std_deg", "mean_abs_cos", "occupancy", "mean_norm"]


def survey(model, batches, **settings):
    return ng.Survey(model, **settings).run(batches, progress=False)


def table_of(model, batches, **settings):
    """The table by (site, side, direction, positions)."""
    return survey(model, batches, **settings).table().set_index(KEYS).sort_index()


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
    """The statistics of one table row, from the vectors themselves: arc tangent in float64, numpy."""
    rows, u = rows.double().numpy(), direction.double().numpy()
    norms, u = np.linalg.norm(rows, axis=-1), u / np.linalg.norm(u)
    along = rows @ u
    across = np.linalg.norm(rows - along[:, None] * u, axis=-1)
    degrees, cos = np.degrees(np.arctan2(across, along)), along / norms
    return dict(
        tokens=len(rows),
        mean_deg=degrees.mean(),
        std_deg=degrees.std(),
        mean_abs_cos=np.abs(cos).mean(),
        occupancy=rows.shape[-1] * (cos**2).mean(),
        mean_norm=norms.mean(),
    )


def dropped(x, gain, bias, eps):
    """‖LayerNorm(x) − RMSNorm(x)‖ over ‖γ⊙n‖, row by row, both norms with this gain, bias and ε; float64, numpy."""
    x, gain, bias = (t.detach().double().numpy() for t in (x, gain, bias))
    centered = x - x.mean(-1, keepdims=True)
    scaled = gain * centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
    without = gain * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) + bias
    return np.linalg.norm(scaled + bias - without, axis=-1) / np.linalg.norm(scaled, axis=-1)


def assert_rows_equal(got, expected, what, tol=1e-9):
    for name in EXACT:
        power = 2 if name == "std_deg" else 1  # a difference of squares of angles
        off, size = abs(got[name] ** power - expected[name] ** power), max(1.0, abs(expected[name]))
        assert off <= tol * size, f"{what}: {name} {got[name]}, directly {expected[name]}"
    assert got["tokens"] == expected["tokens"], f"{what}: {got['tokens']} tokens, directly {expected['tokens']}"


def same_tables(a, b, tol=1e-9):
    keys = [*KEYS, "kind", "dim", "tokens"]
    assert a[keys].equals(b[keys]), "other rows, or other counts of tokens"
    for name in (*EXACT, "drop_error"):
        x, y = a[name].to_numpy(), b[name].to_numpy()
        assert np.array_equal(np.isnan(x), np.isnan(y)), f"{name}: NaN in one table only"
        worst = np.nanmax(np.abs(x - y), initial=0.0)
        assert worst <= tol, f"{name}: off by {worst:.1e}, allowed {tol:.0e}"


def assert_same_state(s, before):
    for name in ("tokens", "batches", "digest"):
        assert getattr(s, name) == getattr(before, name), f"{name} of the survey has changed"
    assert s.table().equals(before.table()) and torch.equal(s._sums, before._sums)


def copied(s):
    """What the state is now, to compare later."""
    return copy.copy(s)


class Skipping(nn.Module):
    """A model whose second norm runs where it is asked for."""

    def __init__(self):
        super().__init__()
        self.always, self.asked = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x, both=True):
        x = self.always(x)
        return self.asked(x) if both else x
