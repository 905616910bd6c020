"""On a GPU: the same checks that the norms pass on the CPU, and the same table from a survey."""

import norm_checks
import normgeom as ng
import pytest
import torch
from pandas.testing import assert_frame_equal
from torch.func import jvp
from transformers import GPT2Config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
NORMS = {
    "layer_norm": (ng.layer_norm, norm_checks.true_layer_norm),
    "rms_norm": (ng.rms_norm, norm_checks.true_rms_norm),
}


def on_gpu(norm):
    def moved(x, weight=None, bias=None, **options):
        weight, bias = (None if t is None else t.cuda() for t in (weight, bias))
        return norm(x.cuda(), weight, bias, **options).to(x.device)

    return moved


@pytest.mark.parametrize("name", NORMS)
def test_the_norms_pass_every_check(name):
    norm, truth = NORMS[name]
    # eager mode hands LayerNorm to torch's kernel, which centres once
    checks = [check for check in norm_checks.CHECKS if check is not norm_checks.huge_mean or name == "rms_norm"]
    assert norm_checks.failures(on_gpu(norm), truth, checks) == {}


def test_the_compiled_norm_centres_twice():
    norm_checks.huge_mean(on_gpu(torch.compile(ng.layer_norm)), norm_checks.true_layer_norm)


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_the_gain_are_summed_in_float32(name):
    norm, truth = NORMS[name]
    x, g = norm_checks.draw(32768, 64).bfloat16(), norm_checks.draw(32768, 64, seed=1).bfloat16()
    weight = torch.ones(64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    (got,) = torch.autograd.grad(norm(x.cuda(), weight), weight, g.cuda())
    right = (g.double() * truth(x.double(), eps=1e-5)).sum(0)
    assert (got.cpu().double() - right).norm() / right.norm() < 1e-2


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
    for dtype, tol in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        norm_checks.close(compiled(x.to(dtype)), norm(x.to(dtype)), tol, f"compiled, {dtype}", "Rounded too early?")


def test_a_survey_gives_the_table_of_the_cpu():
    sizes = dict(vocab_size=64, n_positions=32, bos_token_id=None, eos_token_id=None)
    model, _ = ng.twins(GPT2Config(n_layer=2, n_embd=32, n_head=2, **sizes), seed=0)
    batches = [torch.randint(64, (4, 32), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    on_cpu = ng.Survey(model).run(batches, progress=False).table()
    on_cuda = ng.Survey(model.cuda()).run(batches, progress=False).table()
    quantiles = ["q05_deg", "q50_deg", "q95_deg"]  # a value on a bin's edge may fall on either side
    assert_frame_equal(on_cpu.drop(columns=quantiles), on_cuda.drop(columns=quantiles), rtol=1e-4, atol=1e-3)
    assert (on_cpu[quantiles] - on_cuda[quantiles]).abs().max().max() < 0.25
