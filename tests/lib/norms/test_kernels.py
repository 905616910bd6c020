"""What plain eager mode adds to the norms: the same numbers by torch's kernels and from blocks of rows."""

import gc
import weakref
from itertools import product

import norm_checks
import normgeom as ng
import pytest
import torch
from norm_checks import close, draw, rounding, true_layer_norm
from normgeom.norms import functions, kernels
from pretended_device import DEVICE, Pretended
from torch import bfloat16, float16, float32, float64
from torch.profiler import ProfilerActivity, profile
from ways import BOTH, large, way

__all__ = ["large", "way"]
TOL = {bfloat16: 2e-2, float16: 3e-3, float32: 4e-6, float64: 1e-9}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def gradients(norm, inputs, cotangent, eps=1e-5):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(norm(*inputs, eps), inputs, cotangent.to(inputs[0].dtype))


def both_ways(norm, truth, inputs, cotangent, what):
    """Values and gradients against the truth in float64; a tolerance is of the largest entry."""
    exact = [t.double() for t in inputs]
    results = [norm(*inputs, 1e-5), *gradients(norm, inputs, cotangent)]
    expected = [truth(*exact, 1e-5), *gradients(truth, exact, cotangent.to(inputs[0].dtype).double())]
    for name, got, right in zip(("values", "by x", "by gain", "by bias"), results, expected, strict=True):
        scale = max(1.0, float(right.abs().max()))
        tol = TOL[inputs[0].dtype]
        close(got / scale, right / scale, tol, f"{what}, {name}", "A block left out, or counted twice?")


@BOTH
@pytest.mark.parametrize(("rows", "d"), [(1, 10), (4, 10), (37, 10), (3, 1001)])
@pytest.mark.parametrize("dtype", TOL, ids=str)
def test_blocks_join_without_a_seam(norm, truth, rows, d, dtype, large):
    """One block, full ones, a short last one, and a row that is longer than a block."""
    inputs = draw(rows, d, mean=0.5, dtype=dtype), draw(d, seed=1, dtype=dtype), draw(d, seed=2, dtype=dtype)
    both_ways(norm, truth, inputs, draw(rows, d, seed=3), f"{rows} rows of {d}, {dtype}")


LAYOUTS = {
    "transposed": lambda rows, d: draw(d, rows).T,
    "every second feature": lambda rows, d: draw(rows, 2 * d)[:, ::2],
    "every third row": lambda rows, d: draw(3 * rows, d)[::3],
    "one row expanded": lambda rows, d: draw(d).expand(rows, d),
    "axes permuted": lambda rows, d: draw(2, d, rows).permute(2, 0, 1),
}


@BOTH
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(1, 60), (40, 1), (13, 7)], ids=str)
def test_strides_do_not_matter(norm, truth, layout, size, way):
    x = LAYOUTS[layout](*size)
    inputs = x, draw(size[1], seed=1), draw(size[1], seed=2)
    both_ways(norm, truth, inputs, draw(*x.shape, seed=3), f"{layout}, {tuple(x.shape)}, {x.stride()}")


@BOTH
@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_a_gradient_that_is_one_number_expanded(norm, truth, dtype, way):
    """What ``sum().backward()`` hands over has strides of 0."""
    x, weight = draw(6, 8, dtype=dtype), draw(8, seed=1, dtype=dtype).requires_grad_()
    norm(x, weight).sum().backward()
    exact = draw(8, seed=1, dtype=dtype).double().requires_grad_()
    truth(x.double(), exact).sum().backward()
    # the result's own rounding is a quarter of it
    close(weight.grad, exact.grad, rounding(exact.grad, dtype, terms=6), "by gain", "Strides of 0?")


@BOTH
@pytest.mark.parametrize("dtype", [bfloat16, float32])
@pytest.mark.parametrize("wanted", list(product([False, True], repeat=3))[1:], ids=str)
def test_gradients_by_some_arguments_only(norm, truth, dtype, wanted, way):
    """Frozen gains, a frozen bias, an input that is data: what is asked for is as if all were asked for."""
    values = draw(5, 8, dtype=dtype), draw(8, seed=1, dtype=dtype), draw(8, seed=2, dtype=dtype)
    cotangent = draw(5, 8, seed=3, dtype=dtype)
    everything = gradients(norm, values, cotangent)
    inputs = [t.clone().requires_grad_(w) for t, w in zip(values, wanted, strict=True)]
    norm(*inputs, 1e-5).backward(cotangent)
    for t, want, expected in zip(inputs, wanted, everything, strict=True):
        assert (t.grad is not None) == want
        assert not want or torch.equal(t.grad, expected)


@BOTH
@pytest.mark.parametrize("given", ["weight", "bias", "neither"])
@pytest.mark.parametrize("dtype", [bfloat16, float32, float64])
def test_without_gain_or_bias(norm, truth, given, dtype, way):
    x, cotangent = draw(5, 8, dtype=dtype).requires_grad_(), draw(5, 8, seed=3, dtype=dtype)
    options = {} if given == "neither" else {given: draw(8, seed=1, dtype=dtype).requires_grad_()}
    leaves = [x, *options.values()]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    got = torch.autograd.grad(norm(x, **options), leaves, cotangent)
    right = truth(exact[0], **dict(zip(options, exact[1:], strict=True)))
    for a, b in zip(got, torch.autograd.grad(right, exact, cotangent.double()), strict=True):
        close(a, b, 2 * TOL[dtype], f"{given} given", "The gain taken for 1 where there is one?")


def test_from_which_size_on_means_are_looked_at():
    """Of an input of so many entries the mean is subtracted twice; of one with a row less, once."""
    for rows, twice in ((kernels.LOOK // 768, False), (-(-kernels.LOOK // 768), True)):
        x = draw(rows, 768, mean=1e4, dtype=float32)
        off = float((ng.layer_norm(x).double() - true_layer_norm(x.double())).abs().max())
        assert (off < 1e-5) == twice, f"{rows} rows: off by {off:.0e}"


@BOTH
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [bfloat16, float16])
def test_gradients_by_gain_and_bias_over_many_rows_are_summed_in_float32(norm, truth, threads, dtype, way):
    torch.set_num_threads(threads)
    x, cotangent = draw(32768, 64, dtype=dtype), draw(32768, 64, seed=1, mean=0.1, dtype=dtype)
    weight, bias = torch.ones(64, dtype=dtype), torch.zeros(64, dtype=dtype)
    _, by_gain, by_bias = gradients(norm, (x, weight, bias), cotangent)
    for name, got, right in (
        ("gain", by_gain, (cotangent.double() * truth(x.double(), eps=1e-5)).sum(0)),
        ("bias", by_bias, cotangent.double().sum(0)),
    ):
        error = float((got.double() - right).norm() / right.norm())
        bound = torch.finfo(dtype).eps  # one rounding, at the end, is half of it
        # the bound is the format's
        assert error < bound, f"by {name}: relative error {error:.1e}. Summed in {dtype}?"


# derivatives that are taken in unusual ways


@BOTH
def test_a_second_derivative_after_a_first_without_graph(norm, truth, way):
    """The closed form is used where it will be differentiated, the kernels where not: they agree."""
    inputs = [draw(4, 6).requires_grad_(), draw(6, seed=1).requires_grad_(), draw(6, seed=2).requires_grad_()]
    y, cotangent = norm(*inputs, 1e-2), draw(4, 6, seed=3)
    plain = torch.autograd.grad(y, inputs, cotangent, retain_graph=True)
    again = torch.autograd.grad(y, inputs, cotangent, create_graph=True)
    for name, a, b in zip(("x", "gain", "bias"), plain, again, strict=True):
        close(a, b, 1e-13, f"by {name}, with and without a graph", "Two formulas?")
        assert b.requires_grad or name == "bias"


@BOTH
@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_a_cotangent_with_a_tangent(norm, truth, dtype, way):
    """Forward mode over a backward pass whose graph was built before."""
    x, g, t = draw(3, 6, dtype=dtype).requires_grad_(), draw(3, 6, seed=1, dtype=dtype), draw(3, 6, seed=2, dtype=dtype)
    y = norm(x)
    (expected,) = torch.autograd.grad(y, x, t, retain_graph=True)
    with torch.autograd.forward_ad.dual_level():
        (found,) = torch.autograd.grad(y, x, torch.autograd.forward_ad.make_dual(g, t))
        tangent = torch.autograd.forward_ad.unpack_dual(found).tangent
    close(tangent, expected, {bfloat16: 2e-2, float32: 1e-5}[dtype], "tangent", "It is linear in g")


@BOTH
@pytest.mark.parametrize("dtype", [bfloat16, float64])
def test_tensors_saved_elsewhere_are_found_again(norm, truth, dtype, way):
    """What offloading and checkpoints do: other tensors than the ones saved come back."""
    inputs = [draw(4, 6, dtype=dtype), draw(6, seed=1, dtype=dtype), draw(6, seed=2, dtype=dtype)]
    leaves = [t.clone().requires_grad_() for t in inputs]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = norm(*leaves, 1e-5)
    cotangent = draw(4, 6, seed=3, dtype=dtype)
    expected = gradients(norm, inputs, cotangent)
    for create_graph in (False, True):
        found = torch.autograd.grad(y, leaves, cotangent, retain_graph=True, create_graph=create_graph)
        for got, right in zip(found, expected, strict=True):
            close(got, right, {bfloat16: 2e-2, float64: 1e-13}[dtype], "saved elsewhere", "Kept by itself?")


@BOTH
@pytest.mark.parametrize("dtype", [bfloat16, float32])
@pytest.mark.parametrize("back", [False, True])
def test_nothing_outlives_the_backward_pass(norm, truth, dtype, back, way):
    """An output that is kept, as losses are, keeps no input; a graph without a backward pass goes with its output."""
    leaf = draw(64, 32, dtype=dtype).requires_grad_()
    x = leaf * 1
    seen = weakref.ref(x)
    gc.disable()
    try:
        y = norm(x)
        del x
        if back:
            y.sum().backward()
        else:
            del y
        assert seen() is None, "the input is still held"
    finally:
        gc.enable()


class Silent(torch.autograd.Function):
    """The identity, which hands no gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@BOTH
def test_an_output_without_gradient_is_no_error(norm, truth, way):
    x = draw(3, 6).requires_grad_()
    Silent.apply(norm(x)).sum().backward()
    assert x.grad is None, "no gradient came in, one went out"
    (Silent.apply(norm(x)) + norm(2 * x)).sum().backward()
    assert x.grad is not None


def test_an_error_of_a_hook_is_not_lost():
    def refuse(tensor):
        raise RuntimeError("no room")

    x = draw(3, 6).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(refuse, refuse), pytest.raises(RuntimeError, match="no room"):
        ng.layer_norm(x)


# when the kernels run, and what they cost


class Module(torch.nn.Module):
    """A function as what an export takes."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


@BOTH
def test_everything_but_plain_eager_mode_gets_the_formula(norm, truth, large, monkeypatch):
    calls, name = [], f"fast_{norm.__name__}"
    fast = getattr(functions, name)

    def counted(*given):
        found = fast(*given)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(functions, name, counted)
    x, t = draw(3, 6), draw(3, 6, seed=1)
    norm(x)
    assert calls == [True], "plain eager mode is what the kernels are for"
    calls.clear()
    torch.func.vmap(norm)(x)
    torch.func.jvp(norm, (x,), (t,))
    torch.func.grad(lambda z: norm(z).sum())(x)
    with torch.autograd.forward_ad.dual_level():
        norm(torch.autograd.forward_ad.make_dual(x, t))
    traced = torch.jit.trace(lambda z: norm(z), (x,), check_trace=False)
    assert calls == [False] * 5, "a kernel ran where it cannot be differentiated or traced"
    close(traced(draw(7, 6)), truth(draw(7, 6)), 1e-13, "traced, at another batch size", "Blocks traced as constants?")
    monkeypatch.undo()
    for whole in (torch.compile(norm, backend="eager", fullgraph=True), Module(lambda z: norm(z))):
        run = torch.export.export(whole, (x,), strict=False).module() if isinstance(whole, Module) else whole
        close(run(x), truth(x), 1e-13, "captured", "A graph break?")
    assert norm(x.to("meta")).shape == x.shape


def peak_bytes(work):
    """The most bytes of CPU memory that the tensors made by ``work``, its result among them, hold at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = work()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    del kept
    return highest


@BOTH
@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_memory_is_the_output_scratch_and_statistics(norm, truth, dtype, monkeypatch):
    """Scratch is four blocks in float32.  LayerNorm in sixteen bits keeps a wide copy, and is left out."""
    monkeypatch.setattr(kernels, "BLOCK", 1 << 13)
    rows, d = 2048, 512
    x, gain = draw(rows, d, dtype=dtype), torch.ones(d, dtype=dtype)
    statistics, small, output = 3 * 4 * rows, 20 * 4 * d, x.nbytes
    most = output + 4 * 4 * kernels.BLOCK + statistics + small
    forward = peak_bytes(lambda: norm(x, gain))
    assert output <= forward <= most, f"{forward} bytes forward, output {output}"
    if norm is ng.rms_norm or dtype == float32:
        leaves, cotangent = [x.requires_grad_(), gain.requires_grad_()], draw(rows, d, seed=1, dtype=dtype)
        y = norm(x, gain)
        back = peak_bytes(lambda: torch.autograd.grad(y, leaves, cotangent))
        assert output <= back <= most, f"{back} bytes backward, output {output}"


@pytest.mark.parametrize("norm", [ng.layer_norm, ng.rms_norm])
def test_what_a_large_input_saves_is_itself_and_two_numbers_a_row(norm, large):
    saved = []
    x, gain = draw(64, 512, dtype=float32).requires_grad_(), torch.ones(512, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        norm(x, gain)
    own = [t for t in saved if t.data_ptr() != x.data_ptr()]
    assert sum(t.numel() for t in own) <= 2 * 64 + 512, "the output, or a wide copy of the input, is kept"


@BOTH
def test_eight_bits_go_through_float32(norm, truth, way):
    x = draw(4, 64).to(torch.float8_e4m3fn)
    assert norm_checks.misrounded(norm(x), truth(x.double())) < 0.01


# on a device that is no CPU


DEVICE_WAYS = {
    "layer_norm": lambda x, w, b: ng.layer_norm(x, w, b, 1e-5),
    "rms_norm": lambda x, w, b: ng.rms_norm(x, w, None, 1e-5) * b,
    "bias of RMSNorm": ng.rms_norm,
    "Gemma": lambda x, w, b: ng.rms_norm(x, w, b, unit_offset=True),
    "heads": lambda x, w, b: ng.head_norm(x, 2, w[:4]) * b,
}


def waits(way, dtypes):
    """What the host would wait for in a forward pass, a backward pass and one through that."""
    inputs = draw(3, 8, dtype=dtypes[0]), *(draw(8, seed=i, dtype=dtypes[i]) for i in (1, 2))
    with Pretended() as device:
        leaves = [t.to(DEVICE, non_blocking=True).requires_grad_() for t in inputs]
        y = way(*leaves)
        first = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True)
        torch.autograd.grad(sum(t.square().sum() for t in first), leaves)
        with torch.no_grad():
            way(*leaves)
    return device.waits


@pytest.mark.parametrize("name", DEVICE_WAYS)
@pytest.mark.parametrize("dtypes", list(product([bfloat16, float32], repeat=3)), ids=str)
def test_the_host_waits_for_nothing(name, dtypes, large):
    assert waits(DEVICE_WAYS[name], dtypes) == []
