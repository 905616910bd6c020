"""The gain of nGPT's queries and keys: a number for each entry, in its own unit."""

import torch
from norm_checks import close, draw, true_rms_norm
from normgeom_lab.common.gains import HeadGain


def test_the_gain_is_what_is_stored_in_units_of_scale():
    x, module = draw(5, 3, 4), HeadGain(12, 3, scale=0.05)
    assert list(module.state_dict()) == ["weight"] and module(x.flatten(-2).bfloat16()).dtype == torch.bfloat16
    normed = true_rms_norm(x, eps=0.0).flatten(-2)
    close(module.double()(x.flatten(-2)), normed, 1e-6, "at first", "The stored number is no gain.")
    with torch.no_grad():
        module.weight.copy_(draw(12, seed=1, mean=1.5))
    close(module(x.flatten(-2)), module.weight / 0.05 * normed, 1e-11, "later", "The same gain for every head?")
