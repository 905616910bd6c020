"""The two modules stand in for torch's: constructor, state, devices and dtypes."""

import copy

import normgeom as ng
import numpy as np
import pytest
import torch
from norm_checks import close, draw
from torch import nn

PAIRS = pytest.mark.parametrize(
    ("ours", "torchs"), [(ng.LayerNorm, nn.LayerNorm), (ng.RMSNorm, nn.RMSNorm)], ids=["LayerNorm", "RMSNorm"]
)


def randomised(module, seed=1):
    for i, parameter in enumerate(module.parameters()):
        parameter.data.copy_(draw(*parameter.shape, seed=seed + i))
    return module


@PAIRS
def test_a_new_module_is_the_identity_affine(ours, torchs):
    module = ours(8)
    assert torch.equal(module.weight, torch.ones(8)), "the gain starts at 1"
    assert getattr(module, "bias", None) is None or torch.equal(module.bias, torch.zeros(8)), "the shift starts at 0"


def test_default_epsilon():
    assert ng.LayerNorm(8).eps == nn.LayerNorm(8).eps == 1e-5
    assert ng.RMSNorm(8).eps == 1e-6


@PAIRS
def test_values_and_gradients_equal_torchs(ours, torchs):
    mine, theirs = randomised(ours(8, eps=1e-3, dtype=torch.float64)), torchs(8, eps=1e-3, dtype=torch.float64)
    theirs.load_state_dict(mine.state_dict())
    x = draw(2, 3, 8)
    close(mine(x), theirs(x), 1e-13, "module", "eps not passed on? Weight not passed on?")
    for module in (mine, theirs):
        (module(x) * draw(2, 3, 8, seed=5)).sum().backward()
    for (name, p), q in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        close(p.grad, q.grad, 1e-12, f"gradient of {name}", "A parameter that is not used?")


@PAIRS
@pytest.mark.parametrize("settings", [{}, dict(elementwise_affine=False), dict(bias=False)], ids=str)
def test_state_dicts_are_exchanged_with_torch(ours, torchs, settings):
    if "bias" in settings and torchs is nn.RMSNorm:
        settings = {}
    mine, theirs = randomised(ours(8, **settings)), torchs(8, **settings)
    assert list(mine.state_dict()) == list(theirs.state_dict()), "keys or their order differ"
    theirs.load_state_dict(mine.state_dict())
    again = ours(8, **settings)
    again.load_state_dict(theirs.state_dict())
    for key, value in mine.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), f"{key} did not survive the exchange"


def test_elementwise_affine_and_bias():
    bare, no_bias = ng.LayerNorm(8, elementwise_affine=False), ng.LayerNorm(8, bias=False)
    assert bare.weight is None and bare.bias is None
    assert no_bias.weight is not None and no_bias.bias is None
    assert ng.RMSNorm(8, elementwise_affine=False).weight is None
    x = draw(3, 8)
    assert torch.equal(bare(x), ng.layer_norm(x))


@PAIRS
def test_dtype_and_device_reach_the_parameters(ours, torchs):
    for p in ours(8, dtype=torch.bfloat16).parameters():
        assert p.dtype == torch.bfloat16
    module = ours(8, device="meta")
    assert all(p.is_meta for p in module.parameters())
    assert module(torch.empty(2, 3, 8, device="meta")).shape == (2, 3, 8)
    filled = module.to_empty(device="cpu")
    filled.reset_parameters()
    x = draw(2, 8, dtype=torch.float32)
    assert torch.equal(filled(x), ours(8)(x)), "reset_parameters does not fill a module made on meta"


@PAIRS
def test_a_size_may_be_given_as_torch_takes_it(ours, torchs):
    for size in (8, [8], (8,), torch.Size([8]), np.int64(8)):
        assert ours(size).normalized_shape == torchs(size).normalized_shape == (8,)


@PAIRS
def test_other_dtypes_than_the_modules(ours, torchs):
    module = randomised(ours(8))
    x = draw(4, 8, dtype=torch.bfloat16)
    assert module(x).dtype == torch.bfloat16, "the output follows x, not the weight"
    assert module.double()(x.double()).dtype == torch.float64


@PAIRS
def test_copies_and_representation(ours, torchs):
    module = randomised(ours(8, eps=1e-3))
    x = draw(2, 8, dtype=torch.float32)
    assert torch.equal(copy.deepcopy(module)(x), module(x))
    assert repr(module) == f"{ours.__name__}(8, eps=0.001, elementwise_affine=True)"


@PAIRS
def test_reset_parameters_forgets(ours, torchs):
    module = randomised(ours(8))
    module.reset_parameters()
    assert torch.equal(module.weight, torch.ones(8))
    assert getattr(module, "bias", None) is None or torch.equal(module.bias, torch.zeros(8))


@PAIRS
@pytest.mark.parametrize("size", [0, -3, (2, 3), (), 8.5, None], ids=str)
def test_a_wrong_size_is_named(ours, torchs, size):
    with pytest.raises((TypeError, ValueError), match=r"^d: expected one positive size, got"):
        ours(size)


@PAIRS
def test_a_wrong_epsilon_is_named(ours, torchs):
    with pytest.raises(ValueError, match=r"^eps: expected a number >= 0, got -1e-05"):
        ours(8, eps=-1e-5)
    with pytest.raises(ValueError, match=r"^eps: expected a number >= 0, got nan"):
        ours(8, eps=float("nan"))
    with pytest.raises(TypeError, match=r"^eps: expected a number, got str"):
        ours(8, eps="1e-5")


@PAIRS
def test_an_input_of_another_size_is_named(ours, torchs):
    with pytest.raises(ValueError, match=r"^weight: expected shape \(7,\), the last dimension of x, got \(8,\)"):
        ours(8)(torch.zeros(2, 7))
