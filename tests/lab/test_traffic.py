"""Bytes counted: against operations whose traffic is known by hand."""

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from normgeom_lab.precision import peak_bytes, saved_bytes, traffic


def rows(work):
    return list(traffic(work).itertuples(index=False, name=None))


def test_each_operation_reads_and_writes_what_it_must():
    x, y = torch.ones(100, 10), torch.ones(100, 10)
    assert rows(lambda: x + y) == [("add", 8000, 4000)]
    assert rows(lambda: x.sum()) == [("sum", 4000, 4)]
    assert rows(lambda: x.to(torch.bfloat16)) == [("_to_copy", 4000, 2000)]
    assert rows(lambda: x + torch.ones(10).expand(100, 10))[-1] == ("add", 4040, 4000), "an expanded row is one row"


def test_in_place_and_out_write_where_they_say():
    x, y = torch.ones(50), torch.ones(50)
    assert rows(lambda: x.mul_(y)) == [("mul_", 400, 200)]
    assert rows(lambda: torch.mul(x, y, out=torch.empty(50))) == [("mul", 400, 200)], "out is not read"


def test_views_and_empty_memory_move_nothing():
    x = torch.ones(6, 4)
    assert rows(lambda: (x.view(4, 6), x.T, x[1:3], x.expand(2, 6, 4), torch.empty(9), torch.empty_like(x))) == []


def test_one_kernel_is_one_row():
    x = torch.ones(4, 8)
    (row,) = rows(lambda: F.layer_norm(x, (8,)))
    assert row[0] == "native_layer_norm"
    assert row[1:] == (128, 128 + 2 * 16), "x in; y, mean and 1/s out"
    assert len(rows(lambda: F.rms_norm(x, (8,)))) > 3, "on a CPU of torch 2.13, several operations"


def test_the_peak_counts_what_is_held_together():
    size = 4 * 10**6
    assert peak_bytes(lambda: torch.ones(10**6)) == pytest.approx(size, rel=1e-3)
    assert peak_bytes(lambda: torch.ones(10**6).mul(2).sum()) == pytest.approx(2 * size, rel=1e-3)

    def one_after_the_other():
        for _ in range(3):
            torch.ones(10**6)

    assert peak_bytes(one_after_the_other) == pytest.approx(size, rel=1e-3), "freed memory counted again"


def test_norms_touch_no_more_than_they_must():
    """Two passes over a block are counted as two: what stays in a cache is not seen."""
    x, gain = torch.ones(64, 512), torch.ones(512)
    seen = traffic(lambda: ng.rms_norm(x, gain))
    assert seen.written.sum() < 2.1 * x.nbytes < of_torch(x, gain)


def of_torch(x, gain):
    return traffic(lambda: F.rms_norm(x, x.shape[-1:], gain)).written.sum()


def test_what_waits_for_the_backward_pass():
    x, y = torch.ones(100, 10, requires_grad=True), torch.ones(100, 10, requires_grad=True)
    assert saved_bytes(lambda: x + y) == 0, "a sum needs neither"
    assert saved_bytes(lambda: x * y) == 8000
    assert saved_bytes(lambda: x * x) == 4000, "one memory counted twice"
    assert saved_bytes(lambda: x.exp()) == 4000, "its result"
    assert saved_bytes(lambda: x.exp().exp()) == 8000, "two results that live at different times in different memory"
    assert saved_bytes(lambda: x[:2] * 2.0 * y[:2]) == 4000 + 80, "a view keeps all of its memory"
    assert saved_bytes(lambda: x[:2] * x[2:4]) == 4000, "two views of one memory"


def test_nothing_waits_where_nothing_is_differentiated():
    x = torch.ones(100, 10)
    assert saved_bytes(lambda: x * x) == 0
    with torch.no_grad():
        assert saved_bytes(lambda: x.requires_grad_() * x) == 0
