"""The pretended device sees where the host would wait."""

import pytest
import torch
from pretended_device import DEVICE, Pretended

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
