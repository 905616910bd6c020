"""What plain eager mode adds to the norms: the same numbers from blocks of rows, for less time and memory."""

import gc
import weakref
from itertools import product

import normgeom as ng
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from norm_checks import close, draw, rounding, true_layer_norm, true_rms_norm
from normgeom.norms import blocks, kernels
from normgeom_lab.precision import peak_bytes

NORMS = {"layer_norm": (ng.layer_norm, true_layer_norm), "rms_norm": (ng.rms_norm, true_rms_norm)}
BOTH = pytest.mark.parametrize(("norm", "truth"), NORMS.values(), ids=NORMS)
THREADS = pytest.mark.parametrize("threads", [1, 2, 4])

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that small inputs have many and the last one is short."""
    monkeypatch.setattr(blocks, "BLOCK", 1000)


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def gradients(norm, inputs, cotangent, eps=1e-5):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(norm(*inputs, eps), inputs, cotangent.to(inputs[0].dtype))


def both_ways(norm, truth, inputs, cotangent, tol, what):
    """Values and gradients against the truth in float64; a tolerance is of the largest entry."""
    exact = [t.double() for t in inputs]
    results = [norm(*inputs, 1e-5), *gradients(norm, inputs, cotangent)]
    expected = [truth(*exact, 1e-5), *gradients(truth, exact, cotangent.to(inputs[0].dtype).double())]
    for name, got, right in zip(("values", "by x", "by gain", "by bias"), results, expected, strict=True):
        scale = max(1.0, float(right.abs().max()))
        close(got / scale, right / scale, tol, f"{what}, {name}", "A block left out, or counted twice?")


@BOTH
@pytest.mark.parametrize("rows", [1, 9, 10, 11, 37])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_blocks_join_without_a_seam(norm, truth, rows, dtype, small_blocks):
    inputs = draw(rows, 10, mean=0.5, dtype=dtype), draw(10, seed=1, dtype=dtype), draw(10, seed=2, dtype=dtype)
    tol = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 3e-6, torch.float64: 1e-13}[dtype]
    both_ways(norm, truth, inputs, draw(rows, 10, seed=3), tol, f"{rows} rows of 10, {dtype}")


@BOTH
def test_a_row_longer_than_a_block(norm, truth, small_blocks):
    inputs = draw(3, 1001), draw(1001, seed=1), draw(1001, seed=2)
    both_ways(norm, truth, inputs, draw(3, 1001, seed=3), 1e-12, "rows longer than a block")


LAYOUTS = {
    "transposed": lambda rows, d, seed: draw(d, rows, seed=seed).T,
    "every second feature": lambda rows, d, seed: draw(rows, 2 * d, seed=seed)[:, ::2],
    "every third row": lambda rows, d, seed: draw(3 * rows, d, seed=seed)[::3],
    "one row expanded": lambda rows, d, seed: draw(d, seed=seed).expand(rows, d),
    "axes permuted": lambda rows, d, seed: draw(2, d, rows, seed=seed).permute(2, 0, 1),
    "reversed view": lambda rows, d, seed: draw(rows + 1, d, seed=seed).flip(0)[1:],
}


@BOTH
@pytest.mark.parametrize("layout", LAYOUTS)
@given(rows=st.integers(1, 40), d=st.integers(1, 60), seed=st.integers(0, 999))
def test_strides_do_not_matter(norm, truth, layout, rows, d, seed):
    x = LAYOUTS[layout](rows, d, seed)
    inputs = x, draw(d, seed=seed + 1), draw(d, seed=seed + 2)
    both_ways(norm, truth, inputs, draw(*x.shape, seed=seed + 3), 1e-9, f"{layout}, {tuple(x.shape)}, {x.stride()}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_do_not_matter_to_far_rows(layout):
    """Their results are written over torch's: into the tensor that is returned, not into a copy of it."""
    x = LAYOUTS[layout](12, 40, 5)
    x = x + 50.0 * (x.sum(-1, keepdim=True) > 0)  # some rows, and the strides of x where it has all its numbers
    inputs = x, draw(40, seed=1), draw(40, seed=2)
    both_ways(ng.layer_norm, true_layer_norm, inputs, draw(*x.shape, seed=3), 1e-9, f"{layout}, far rows")


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gradient_that_is_one_number_expanded(norm, truth, dtype):
    """What ``sum().backward()`` hands over has strides of 0."""
    x, weight = draw(6, 8, dtype=dtype), draw(8, seed=1, dtype=dtype).requires_grad_()
    norm(x, weight).sum().backward()
    exact = draw(8, seed=1, dtype=dtype).double().requires_grad_()
    truth(x.double(), exact).sum().backward()
    # margin: the result's own rounding is a quarter of it
    close(weight.grad, exact.grad, rounding(exact.grad, dtype, terms=6), "by gain", "Strides of 0?")


@BOTH
@pytest.mark.parametrize("far", [False, True], ids=["near", "far from zero"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("wanted", list(product([False, True], repeat=3))[1:], ids=str)
def test_gradients_by_some_arguments_only(norm, truth, far, dtype, wanted):
    """Frozen gains, a frozen bias, an input that is data: what is asked for is as if all were asked for."""
    values = draw(5, 8, mean=100.0 * far, dtype=dtype), draw(8, seed=1, dtype=dtype), draw(8, seed=2, dtype=dtype)
    cotangent = draw(5, 8, seed=3, dtype=dtype)
    everything = gradients(norm, values, cotangent)
    inputs = [t.clone().requires_grad_(w) for t, w in zip(values, wanted, strict=True)]
    norm(*inputs, 1e-5).backward(cotangent)
    for t, want, expected in zip(inputs, wanted, everything, strict=True):
        assert (t.grad is not None) == want
        assert not want or torch.equal(t.grad, expected)


@BOTH
@pytest.mark.parametrize("given_", ["weight", "bias", "neither"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_without_gain_or_bias(norm, truth, given_, dtype):
    x, cotangent = draw(5, 8, dtype=dtype).requires_grad_(), draw(5, 8, seed=3, dtype=dtype)
    options = {} if given_ == "neither" else {given_: draw(8, seed=1, dtype=dtype).requires_grad_()}
    leaves = [x, *options.values()]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    got = torch.autograd.grad(norm(x, **options), leaves, cotangent)
    expected = torch.autograd.grad(
        truth(exact[0], **dict(zip(options, exact[1:], strict=True))), exact, cotangent.double()
    )
    tol = {torch.bfloat16: 3e-2, torch.float32: 3e-6, torch.float64: 1e-12}[dtype]
    for a, b in zip(got, expected, strict=True):
        close(a, b, tol, f"{given_} given", "The gain taken for 1 where there is one?")


@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6])
def test_far_rows_lose_nothing_forward_or_back(mean):
    """Rows of all means together: each keeps the accuracy it has alone."""
    x = draw(12, 768, dtype=torch.float32)
    x[::2] += mean
    inputs = x, draw(768, seed=1, dtype=torch.float32), draw(768, seed=2, dtype=torch.float32)
    both_ways(
        ng.layer_norm, true_layer_norm, inputs, draw(12, 768, seed=3), 4e-6, f"half of the rows at mean {mean:.0e}"
    )
    ours = ng.layer_norm(x)
    assert torch.equal(ours[1::2], ng.layer_norm(x[1::2].clone())), "the rows near zero changed with the far ones"
    assert torch.equal(ours[::2], ng.layer_norm(x[::2].clone())), "the far rows changed with the others"


@BOTH
@THREADS
@pytest.mark.parametrize("d", [1, 7, 768, 70_000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_sees_neither_its_batch_nor_the_threads(norm, truth, threads, d, dtype):
    x = draw(5, d, dtype=torch.float32)
    x[3] += 1e3
    x, cotangent = x.to(dtype), draw(5, d, seed=1, dtype=dtype)

    def row(batch, i):
        rows = x[batch].clone().requires_grad_()
        y = norm(rows)
        y.backward(cotangent[batch])
        return y.detach()[i], rows.grad[i]

    torch.set_num_threads(1)
    expected = [row(list(range(5)), i) for i in range(5)]
    torch.set_num_threads(threads)
    for i in range(5):
        for batch in ([i], [i, i], [4, i, 0], list(range(5))):
            for got, right in zip(row(batch, batch.index(i)), expected[i], strict=True):
                assert torch.equal(got, right), f"row {i} differs in batch {batch} on {threads} threads"


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_nan_or_an_overflow_stays_in_its_row(norm, truth, dtype):
    x, cotangent = draw(4, 8, dtype=dtype), draw(4, 8, seed=1, dtype=dtype)
    clean = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(norm(clean), clean, cotangent)
    x[1, 2], x[2] = torch.nan, 1e30
    x.requires_grad_()
    y = norm(x)
    (got,) = torch.autograd.grad(y, x, cotangent)
    assert y[1].isnan().all() and got[1].isnan().all(), "NaN in, numbers out"
    assert torch.equal(got[[0, 3]], expected[[0, 3]]), "the rows beside a NaN changed"
    assert torch.equal(y[[0, 3]], norm(clean)[[0, 3]])


@BOTH
@THREADS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_by_gain_and_bias_over_many_rows_are_summed_in_float32(norm, truth, threads, dtype):
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
        # margin: the format's
        assert error < bound, f"by {name}: relative error {error:.1e}. Summed in {dtype}?"


@BOTH
def test_a_second_derivative_after_a_first_without_graph(norm, truth):
    """The closed form is used where it will be differentiated, the blocks where not: they agree."""
    inputs = [draw(4, 6).requires_grad_(), draw(6, seed=1).requires_grad_(), draw(6, seed=2).requires_grad_()]
    y, cotangent = norm(*inputs, 1e-2), draw(4, 6, seed=3)
    plain = torch.autograd.grad(y, inputs, cotangent, retain_graph=True)
    again = torch.autograd.grad(y, inputs, cotangent, create_graph=True)
    for name, a, b in zip(("x", "gain", "bias"), plain, again, strict=True):
        close(a, b, 1e-13, f"by {name}, with and without a graph", "Two formulas?")
        assert b.requires_grad or name == "bias"


def slope(norm, order):
    """The derivative of a sum of cubes, squared, averaged and differentiated again until ``order`` are taken."""
    x = draw(3, 6).requires_grad_()
    value = norm(x).pow(3).sum()
    for _ in range(order):
        (found,) = torch.autograd.grad(value, x, create_graph=True)
        value = found.square().mean()
    return found.detach()


def unrolled(x, centered):
    """Either norm in operations of which torch differentiates each rightly."""
    c = x - x.mean(-1, keepdim=True) if centered else x
    return c / (c.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("norm", "centered"),
    [(ng.layer_norm, True), (ng.rms_norm, False)],
    ids=["layer_norm", "rms_norm"],
)
def test_derivatives_of_every_order(norm, centered, order):
    """torch's own LayerNorm, the truth elsewhere, is wrong from the third on (claim-third-derivative)."""
    right = slope(lambda x: unrolled(x, centered), order)
    got, scale = slope(lambda x: norm(x, eps=1e-5), order), right.abs().max()
    close(got / scale, right / scale, 1e-11, f"derivative {order}", "A statistic held fixed in the closed form?")


@BOTH
def test_many_gradients_at_once(norm, truth):
    """``is_grads_batched`` runs the backward pass under a vmap of its own kind."""
    x, several = draw(3, 6).requires_grad_(), draw(4, 3, 6, seed=1)
    y = norm(x)
    (got,) = torch.autograd.grad(y, x, several, is_grads_batched=True, retain_graph=True)
    expected = torch.stack([torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in several])
    close(got, expected, 1e-13, "batched gradients", "Written in place?")


@BOTH
def test_many_gradients_that_are_differentiated_again(norm, truth):
    x, several = draw(3, 6).requires_grad_(), draw(4, 3, 6, seed=1)
    options = dict(is_grads_batched=True, create_graph=True)
    found = [torch.autograd.grad(n(x, eps=1e-5), x, several, **options)[0].pow(3).sum() for n in (norm, truth)]
    got, right = (torch.autograd.grad(f, x)[0] for f in found)
    close(got, right, 1e-12, "batched gradients, differentiated", "The closed form left out under a vmap?")


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_cotangent_with_a_tangent(norm, truth, dtype):
    """Forward mode over a backward pass whose graph was built before."""
    x, g, t = draw(3, 6, dtype=dtype).requires_grad_(), draw(3, 6, seed=1, dtype=dtype), draw(3, 6, seed=2, dtype=dtype)
    y = norm(x)
    (expected,) = torch.autograd.grad(y, x, t, retain_graph=True)
    with torch.autograd.forward_ad.dual_level():
        (found,) = torch.autograd.grad(y, x, torch.autograd.forward_ad.make_dual(g, t))
        tangent = torch.autograd.forward_ad.unpack_dual(found).tangent
    close(tangent, expected, {torch.bfloat16: 2e-2, torch.float32: 1e-5}[dtype], "tangent", "It is linear in g")


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tensors_saved_elsewhere_are_found_again(norm, truth, dtype):
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
            close(got, right, {torch.bfloat16: 2e-2, torch.float64: 1e-13}[dtype], "saved elsewhere", "Kept by itself?")


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("back", [False, True])
def test_nothing_outlives_the_backward_pass(norm, truth, dtype, back):
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
def test_an_output_without_gradient_is_no_error(norm, truth):
    x = draw(3, 6).requires_grad_()
    Silent.apply(norm(x)).sum().backward()
    assert x.grad is None, "no gradient came in, one went out"
    (Silent.apply(norm(x)) + norm(2 * x)).sum().backward()
    assert x.grad is not None


class Module(torch.nn.Module):
    """A function as what an export takes."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


class Marked(torch.Tensor):
    """A subclass, as those of distributed or quantised tensors."""


@BOTH
def test_everything_but_plain_eager_mode_gets_the_formula(norm, truth, monkeypatch):
    calls = []
    entries = [(kernels, "_if_near"), (kernels._LayerNorm, "run"), (kernels._RMSNorm, "run")]
    for owner, name in entries:
        run = getattr(owner, name)
        counted = lambda *a, run=run: calls.append(1) or run(*a)  # noqa: E731
        monkeypatch.setattr(owner, name, staticmethod(counted))
    x, t = draw(3, 6), draw(3, 6, seed=1)
    norm(x)
    assert calls == [1], "plain eager mode is what the kernels are for"
    calls.clear()
    torch.func.vmap(norm)(x)
    torch.func.jvp(norm, (x,), (t,))
    torch.func.grad(lambda z: norm(z).sum())(x)
    torch.compile(norm, backend="eager", fullgraph=True)(x)
    torch.export.export(Module(lambda z: norm(z)), (x,), strict=False)
    norm(x.as_subclass(Marked))
    norm(x.to("meta"))
    with torch.autograd.forward_ad.dual_level():
        norm(torch.autograd.forward_ad.make_dual(x, t))
    traced = torch.jit.trace(lambda z: norm(z), (x,), check_trace=False)
    assert calls == [], "a kernel ran where it cannot be differentiated or traced"
    close(traced(draw(7, 6)), truth(draw(7, 6)), 1e-13, "traced, at another batch size", "Blocks traced as constants?")


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_is_the_output_scratch_and_statistics(norm, truth, dtype, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 1 << 17)
    rows, d = 2048, 512
    x, cotangent = draw(rows, d, dtype=dtype).requires_grad_(), draw(rows, d, seed=1, dtype=dtype)
    gain, statistics = torch.ones(d, dtype=dtype, requires_grad=True), 3 * 4 * rows
    output, small = x.numel() * x.element_size(), 20 * 4 * d
    most = output + blocks.BLOCK + statistics + small
    forward = peak_bytes(lambda: norm(x, gain))
    assert output <= forward <= most, f"{forward} bytes forward, output {output}"
    y = norm(x, gain)
    back = peak_bytes(lambda: torch.autograd.grad(y, [x, gain], cotangent))
    assert output <= back <= most, f"{back} bytes backward, output {output}"


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_saved_is_the_input_and_two_numbers_a_row(norm, truth, dtype):
    saved = []
    x, gain = draw(64, 512, dtype=dtype).requires_grad_(), torch.ones(512, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        norm(x, gain)
    own = [t for t in saved if t.data_ptr() != x.data_ptr()]
    assert sum(t.numel() for t in own) <= 2 * 64 + 512, "the output, or a wide copy of the input, is kept"


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("float32", "float64"), ("float64", "float32")])
def test_a_gain_of_another_dtype_leaves_the_record_to_torch(dtypes):
    x, gain = draw(3, 6, dtype=getattr(torch, dtypes[0])), draw(6, dtype=getattr(torch, dtypes[1]))
    y = ng.layer_norm(x.requires_grad_(), gain)
    assert y.grad_fn.name() == "NativeLayerNormBackward0", "the slower way, for want of a conversion"


def test_an_error_of_a_hook_is_not_lost():
    def refuse(tensor):
        raise RuntimeError("no room")

    x = draw(3, 6).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(refuse, refuse), pytest.raises(RuntimeError, match="no room"):
        ng.layer_norm(x)


@BOTH
def test_eight_bits_go_through_the_formula(norm, truth):
    x = draw(4, 64).to(torch.float8_e4m3fn)
    expected = truth(x.double())
    error = (norm(x).double() - expected).abs()
    assert norm(x).dtype == x.dtype
    assert (error <= expected.abs() / 16 + 2**-10).all(), "more than the rounding of three digits after the first"


def test_torch_still_needs_this():
    """Bound to torch 2.13: when one of these fails, a part of kernels.py is no longer needed."""
    if not torch.__version__.startswith("2.13."):
        pytest.skip("written for torch 2.13")
    x = draw(8, 768, mean=1e4, dtype=torch.float32)
    assert (F.layer_norm(x, (768,)) - true_layer_norm(x.double())).abs().max() > 1e-4
    third, right = slope(true_layer_norm, 3), slope(lambda x: unrolled(x, True), 3)
    assert (third - right).norm() > 1e-2 * right.norm(), "its third derivative is mended"
    x, g = draw(4096, 64, dtype=torch.bfloat16), draw(4096, 64, seed=1, dtype=torch.bfloat16)
    weight = torch.ones(64, dtype=torch.bfloat16, requires_grad=True)
    (got,) = torch.autograd.grad(F.layer_norm(x, (64,), weight), weight, g)
    right = (g.double() * true_layer_norm(x.double())).sum(0)
    assert (got.double() - right).norm() / right.norm() > 1e-2
