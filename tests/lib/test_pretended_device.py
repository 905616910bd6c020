"""The pretended device sees where the host would wait, and nothing else for it."""

import pytest
import torch
from pretended_device import DEVICE, Pretended, There

WAITS = {
    "a value": lambda x: x.max().item(),
    "a decision": lambda x: bool((x > 0).any()),
    "rows by a mask": lambda x: x[x[:, 0] > 0],
    "different values": lambda x: x.unique(),
    "repeated by counts": lambda x: x.repeat_interleave((x[:, 0] > 0).long(), 0),
    "to the CPU": lambda x: x.cpu(),
    "from the CPU": lambda x: torch.ones(3).to(DEVICE),
    "written from the CPU": lambda x: x.copy_(torch.ones(3, 4)),
}
PASSES = {
    "arithmetic": lambda x: (x @ x.T).softmax(-1).sum(0),
    "choices without a shape": lambda x: torch.where(x > 0, x, torch.nan).masked_fill(x > 1, 0.0),
    "rows by number": lambda x: x[torch.tensor([2, 0]).to(DEVICE, non_blocking=True)],
    "made there": lambda x: torch.zeros(3, device=DEVICE),
    "a number of the CPU": lambda x: x * torch.tensor(2.0),
    "written from the CPU, not blocking": lambda x: x.copy_(torch.ones(3, 4), non_blocking=True),
    "gradients": lambda x: torch.autograd.grad(x.requires_grad_().square().sum(), x),
}


def seen(function):
    x = torch.randn(3, 4)
    with Pretended() as device:
        x = x.to(DEVICE, non_blocking=True)
        assert device.waits == []
        function(x)
    return device.waits


@pytest.mark.parametrize("function", WAITS.values(), ids=WAITS)
def test_the_host_would_wait_once(function):
    assert len(seen(function)) == 1


@pytest.mark.parametrize("function", PASSES.values(), ids=PASSES)
def test_the_host_would_not_wait(function):
    assert seen(function) == []


def test_numbers_are_those_of_the_cpu():
    x = torch.randn(3, 4)
    with Pretended():
        y = torch.linalg.vector_norm(x.to(DEVICE), dim=-1)
        assert isinstance(y, There) and y.device == DEVICE and not y.is_cpu
        back = y.cpu()
    assert torch.equal(back, torch.linalg.vector_norm(x, dim=-1))


def test_what_is_read_is_waited_for():
    with Pretended(), pytest.raises(RuntimeError, match="the host would read what has not come yet"):
        torch.ones(3).to(DEVICE).to("cpu", non_blocking=True)


def test_tensors_of_two_devices_do_not_meet():
    with Pretended(), pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
        torch.ones(3).to(DEVICE) + torch.ones(3)
