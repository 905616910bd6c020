"""On a GPU: the checks that the norms pass on the CPU, the same table from a survey, and no wait for either."""

import warnings
from functools import wraps
from itertools import product

import norm_checks
import normgeom as ng
import pytest
import torch
from normgeom.models.watch import forward
from pandas.testing import assert_frame_equal
from torch import nn
from torch.func import jvp
from transformers import GPT2Config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
NORMS = {
    "layer_norm": (ng.layer_norm, norm_checks.true_layer_norm),
    "rms_norm": (ng.rms_norm, norm_checks.true_rms_norm),
}


def on_gpu(norm):
    """The norm with all tensors moved there and its result moved back; its signature stays."""

    @wraps(norm)
    def moved(x, *others, **options):
        args = (t.cuda() if isinstance(t, torch.Tensor) else t for t in (x, *others))
        options = {name: t.cuda() if isinstance(t, torch.Tensor) else t for name, t in options.items()}
        return norm(*args, **options).to(x.device)

    return moved


@pytest.mark.parametrize("name", NORMS)
def test_the_norms_pass_every_check(name):
    norm, truth = NORMS[name]
    # eager mode hands LayerNorm to torch's kernel, which centres once
    checks = [check for check in norm_checks.CHECKS if check is not norm_checks.huge_mean or name == "rms_norm"]
    checks.append(norm_checks.higher_derivatives)
    for check in checks:
        check(on_gpu(norm), truth)


@pytest.mark.parametrize("of_gain", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_the_gain_are_summed_in_float32(name, of_gain):
    norm, truth = NORMS[name]
    x, g = norm_checks.draw(32768, 64).bfloat16(), norm_checks.draw(32768, 64, seed=1).bfloat16()
    weight = torch.ones(64, dtype=of_gain, device="cuda", requires_grad=True)
    (got,) = torch.autograd.grad(norm(x.cuda(), weight, eps=1e-5), weight, g.cuda())
    right = (g.double() * truth(x.double(), eps=1e-5)).sum(0)
    assert got.dtype == of_gain and (got.cpu().double() - right).norm() / right.norm() < 1e-2


@pytest.mark.parametrize("name", NORMS)
def test_transforms_and_compile(name):
    norm, _ = NORMS[name]
    x, t = norm_checks.draw(2, 4, 16).cuda()

    def nested(f):
        return jvp(lambda y: jvp(f, (y,), (t,))[1], (x,), (t,))[1]

    step = 1e-4
    finite = (norm(x + step * t) - 2 * norm(x) + norm(x - step * t)) / step**2
    norm_checks.close(nested(norm), finite, 1e-5, "jvp of jvp", "A custom forward rule that does not nest?")
    compiled = torch.compile(norm, fullgraph=True)
    for dtype in (torch.float32, torch.bfloat16):
        expected = norm(x.to(dtype))
        tol = norm_checks.rounding(expected, dtype)
        norm_checks.close(compiled(x.to(dtype)), expected, tol, f"compiled, {dtype}", "Rounded too early?")


def waits(action):
    """How often the host waits for the GPU; once run before, so that nothing is set up."""
    action()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in seen)


WAYS = {
    "layer_norm": ng.layer_norm,
    "rms_norm": ng.rms_norm,
    "Gemma": lambda x, w, b: ng.rms_norm(x, w, b, unit_offset=True),
    "no bias": lambda x, w, b: ng.rms_norm(x, w) * b,
    "steps": lambda x, w, b: ng.layer_norm_steps(x, w, b, 1e-5).output,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("dtypes", list(product([torch.bfloat16, torch.float32], repeat=3)), ids=str)
def test_the_host_waits_for_no_norm(way, dtypes):
    """Forward, back, and back through that."""
    x, weight, bias = (norm_checks.draw(*size) for size in ((64, 256), (256,), (256,)))
    leaves = [t.to("cuda", dtype).requires_grad_() for t, dtype in zip((x, weight, bias), dtypes, strict=True)]

    def passes():
        first = torch.autograd.grad(way(*leaves).pow(3).sum(), leaves, create_graph=True)
        torch.autograd.grad(sum(t.float().square().sum() for t in first), leaves)
        with torch.no_grad():
            way(*leaves)

    assert waits(passes) == 0


def test_waits_are_counted():
    x = torch.ones(3, device="cuda")
    assert waits(lambda: (x.sum().item(), bool(x.any()), x[x > 0], x.cpu(), torch.ones(3).to(x.device))) == 5


def gpt2(layers, dtype=torch.float64):
    sizes = dict(vocab_size=64, n_positions=32, bos_token_id=None, eos_token_id=None)
    return ng.twins(GPT2Config(n_layer=layers, n_embd=32, n_head=2, **sizes), seed=0)[0].to(dtype)


def batches():
    """Three of tokens."""
    return [torch.randint(64, (4, 32), generator=torch.Generator().manual_seed(i)) for i in range(3)]


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str)
def test_a_survey_gives_the_table_of_the_cpu(dtype, tol):
    """The vectors of a network in float32 differ by more than a survey adds."""
    model, settings = gpt2(2, dtype), dict(directions=["uniform", "signs_a"])
    on_cpu = ng.Survey(model, **settings).run(batches(), progress=False).table()
    on_cuda = ng.Survey(model.cuda(), **settings).run(batches(), progress=False).table()
    assert_frame_equal(on_cpu, on_cuda, rtol=tol, atol=10 * tol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_survey_of_norms_alone_is_that_of_the_cpu_and_never_waits(dtype):
    """Also of vectors with NaN, of length zero and with a huge mean."""
    x = norm_checks.draw(3, 40, 64, dtype=torch.float32)
    x[0, 1, 2], x[1, 0], x[2] = torch.nan, 0.0, 1e3 + x[2]
    x, results = x.to(dtype), []
    for device in ("cpu", "cuda"):
        model = nn.Sequential(*(nn.RMSNorm(64) for _ in range(3))).to(device, dtype)
        there = x.to(device)
        result = ng.Survey(model, example_inputs=there)
        result._measure(there, "")  # the directions are there now
        torch.cuda.set_sync_debug_mode("error" if device == "cuda" else "default")
        try:
            result._measure(there, "")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        results.append(result)
    (on_cpu, on_cuda), exact = (result.table() for result in results), dtype == torch.float32
    columns = ["tokens", "mean_deg", "std_deg", "mean_abs_cos", "mean_norm"]
    tol = 1e-5 if exact else 1e-2
    assert_frame_equal(on_cpu[columns], on_cuda[columns], rtol=tol, atol=tol)


@pytest.mark.parametrize("layers", [1, 4])
def test_a_survey_adds_no_wait(layers):
    """At 3 norms and at 9."""
    model, batch = gpt2(layers).cuda(), batches()[2]
    result = ng.Survey(model)
    result._measure(batch, "")  # the directions are there now
    assert waits(lambda: result._measure(batch, "")) == waits(lambda: forward(model, batch))


def test_a_survey_begun_on_the_cpu_goes_on():
    model, given = gpt2(1), batches()
    whole = ng.Survey(model).run(given, progress=False).table()
    begun = ng.Survey(model).run(given[:1], progress=False)
    model.cuda()
    begun.run(given[1:2], progress=False)
    model.cpu()
    ended = begun.run(given[2:], progress=False).table()
    columns = ["mean_deg", "std_deg", "mean_abs_cos", "mean_norm", "drop_error", "tokens"]
    assert_frame_equal(ended[columns], whole[columns], rtol=1e-9, atol=1e-8)
