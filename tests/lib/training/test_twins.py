"""twins and train: the norm is the only difference, and training trains."""

import math
import random

import normgeom as ng
import numpy as np
import pytest
import torch
from norm_checks import close
from normgeom.training.twins import NORMS, SIZES, Centring, Size, adamw, train, variants, warmup_cosine
from tiny_models import token_ids
from torch import nn
from transformers import GPT2Config

CONFIG = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=None, eos_token_id=None)


def batches(count):
    """A cycle of tokens: learnt within a few dozen steps."""
    for i in range(count):
        yield (torch.arange(16) + torch.arange(4)[:, None] + i) % 8


def test_the_norm_is_the_only_difference():
    layer, rms = ng.twins(CONFIG, seed=3)
    mine, theirs = layer.state_dict(), rms.state_dict()
    norms = {name for name, module in layer.named_modules() if isinstance(module, nn.LayerNorm)}
    assert len(norms) == 5
    assert set(mine) - set(theirs) == {f"{name}.bias" for name in norms}, "only the shifts of the norms are gone"
    assert set(theirs) <= set(mine)
    for key, value in theirs.items():
        assert torch.equal(value, mine[key]), f"{key} differs"
    types = {name: type(module) for name, module in rms.named_modules()}
    for name, module in layer.named_modules():
        assert types[name] is (ng.RMSNorm if name in norms else type(module)), f"{name} is a {types[name].__name__}"


def test_what_the_norms_do():
    layer, rms = ng.twins(CONFIG, seed=3)
    assert [(s.name, s.kind, s.eps) for s in ng.find_norms(layer)] == [
        (s.name, "layer", s.eps) for s in ng.find_norms(rms)
    ]
    assert {(s.kind, s.eps) for s in ng.find_norms(rms)} == {("rms", 1e-5)}, "ε must be that of the LayerNorm"


def test_the_twins_share_no_memory():
    layer, rms = ng.twins(CONFIG, seed=3)
    mine = {p.data_ptr() for p in layer.parameters()}
    assert not mine & {p.data_ptr() for p in rms.parameters()}, "training one would train the other"


def test_each_keeps_its_head_tied():
    for model in ng.twins(CONFIG, seed=3):
        assert model.lm_head.weight is model.transformer.wte.weight


def test_mode_dtype_and_device():
    for model in ng.twins(CONFIG, seed=3):
        assert not any(module.training for module in model.modules()), "evaluation mode everywhere"
        assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}


def test_the_seed_decides():
    (first, _), (again, _), (other, _) = (ng.twins(CONFIG, seed=s) for s in (3, 3, 4))
    ids = token_ids(1, 8)
    assert torch.equal(first(ids).logits, again(ids).logits)
    assert not torch.equal(first(ids).logits, other(ids).logits)


def test_global_generators_are_untouched():
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    ng.twins(CONFIG, seed=3)
    assert torch.equal(torch.get_rng_state(), before[0]), "torch's generator moved"
    assert random.getstate() == before[1], "Python's generator moved"
    assert np.array_equal(np.random.get_state()[1], before[2]), "numpy's generator moved"


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_training_lowers_the_loss(which):
    model = ng.twins(CONFIG, seed=3)[which]
    losses = train(model, batches(60), steps=60, learning_rate=1e-2)
    assert len(losses) == 60 and all(isinstance(loss, float) for loss in losses)
    assert losses[0] == pytest.approx(math.log(64), abs=0.5), "the first loss is that of a uniform guess, in nats"
    assert losses[-1] < 0.5 * losses[0], f"from {losses[0]:.2f} to {losses[-1]:.2f}"
    assert not any(module.training for module in model.modules()), "left in evaluation mode"


def test_training_is_deterministic():
    config = GPT2Config(**{**CONFIG.to_dict(), "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})
    runs = [train(ng.twins(config, seed=3)[0], batches(5), steps=5, learning_rate=1e-3) for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_learning_rate_warms_up_and_comes_down():
    """With Adam a step is about as long as the learning rate: the steps of one weight trace the schedule."""
    config = GPT2Config(**{**CONFIG.to_dict(), "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})
    model, rates = ng.twins(config, seed=3)[0], []
    step = torch.optim.AdamW.step

    def noted(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", noted)
        train(model, batches(40), steps=40, learning_rate=1e-3)
    warmup, after = rates[:4], rates[4:]
    close(torch.tensor(warmup), torch.tensor([0.25, 0.5, 0.75, 1.0]) * 1e-3, 1e-9, "warm-up", "Not linear?")
    cosine = [1e-4 + 4.5e-4 * (1 + math.cos(math.pi * i / 36)) for i in range(36)]
    close(torch.tensor(after), torch.tensor(cosine), 1e-9, "after it", "Cosine to a tenth of the peak?")


def test_too_few_batches():
    with pytest.raises(ValueError, match=r"^batches: expected 10, got 4"):
        train(ng.twins(CONFIG, seed=3)[0], batches(4), steps=10, learning_rate=1e-3)


def test_more_batches_than_steps():
    assert len(train(ng.twins(CONFIG, seed=3)[0], batches(9), steps=3, learning_rate=1e-3)) == 3


def test_a_single_step():
    assert len(train(ng.twins(CONFIG, seed=3)[0], batches(1), steps=1, learning_rate=1e-3)) == 1


def test_the_default_dtype_does_not_matter():
    expected = ng.twins(CONFIG, seed=3)
    torch.set_default_dtype(torch.float64)
    try:
        got = ng.twins(CONFIG, seed=3)
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(expected, got, strict=True):
        for name, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[name]), f"{name}: drawn in the default dtype?"


# variants


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("norm", NORMS)
def test_each_variant_begins_with_the_weights_of_the_others(norm):
    model, reference = variants(CONFIG, 3, (norm,))[norm], ng.twins(CONFIG, 3)[0]
    mine, theirs = model.state_dict(), reference.state_dict()
    norms = {name for name, module in reference.named_modules() if isinstance(module, nn.LayerNorm)}
    affine = {"layer": ("weight", "bias"), "centre": ("weight", "bias"), "rms": ("weight",)}.get(norm, ())
    outside = {name for name in theirs if name.rpartition(".")[0] not in norms}
    assert set(mine) == outside | {f"{name}.{part}" for name in norms for part in affine}
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), f"{name} differs"
    assert model.lm_head.weight is model.transformer.wte.weight, "the head is not tied any more"


@pytest.mark.parametrize("norm", NORMS)
def test_each_variant_has_its_norm_with_the_eps_of_the_others(norm):
    config = GPT2Config(**{**CONFIG.to_dict(), "layer_norm_epsilon": 3e-3})
    sites = ng.find_norms(variants(config, 3, (norm,))[norm])
    assert len(sites) == (0 if norm == "none" or "centre" in norm else 5), "what does not divide is no norm"
    assert {site.kind for site in sites} <= {norm.split("-")[0]}
    assert all(site.eps == pytest.approx(3e-3) for site in sites), f"ε is {sites[0].eps}: the default?"


def test_variants_share_no_memory():
    models = variants(CONFIG, 3)
    assert list(models) == list(NORMS)
    places = [{p.data_ptr() for p in model.parameters()} for model in models.values()]
    assert len(set().union(*places)) == sum(map(len, places)), "training one would train another"


def test_a_norm_that_is_none_of_them():
    with pytest.raises(
        ValueError,
        match=r"^norms: expected some of layer, rms, layer-plain, rms-plain, centre, centre-plain, none, got 'ln'",
    ):
        variants(CONFIG, 3, ("layer", "ln"))


@torch.no_grad()
def centre(model):
    """Take the direction 1 from all that writes to the stream, in place; biases are drawn first."""
    for block in model.transformer.h:
        for writer in (block.attn.c_proj, block.mlp.c_proj):
            writer.bias.copy_(torch.linspace(-1, 1, len(writer.bias)) ** 2)
            for parameter in (writer.weight, writer.bias):
                parameter -= parameter.mean(-1, keepdim=True)
    for embedding in (model.transformer.wte, model.transformer.wpe):
        embedding.weight -= embedding.weight.mean(-1, keepdim=True)
    return model


@pytest.mark.parametrize(("layer", "rms"), [("layer", "rms"), ("layer-plain", "rms-plain")])
def test_twins_differ_by_the_mean_alone(layer, rms):
    """Where no hidden vector has a mean, the initial logits are the same; else they are not."""
    ids = token_ids(2, 16)
    for change, same in ((lambda model: model, False), (centre, True)):
        a, b = (logits(change(variants(CONFIG, 3, (norm,))[norm].double()), ids) for norm in (layer, rms))
        off = float((a - b).abs().max())
        assert (off <= 1e-12) == same, f"logits differ by {off:.1e}: another ε, or something else than the norm?"
        assert same or off > 1e-4


def test_plain_norms_begin_as_those_with_an_affine_part():
    ids = token_ids(2, 16)
    models = {norm: model.double() for norm, model in variants(CONFIG, 3).items()}
    for norm in ("layer", "rms"):
        got, expected = logits(models[f"{norm}-plain"], ids), logits(models[norm], ids)
        close(got, expected, 1e-12, f"logits of {norm}-plain", "Another ε? A mean that stays?")
    assert (logits(models["none"], ids) - logits(models["layer"], ids)).abs().max() > 0.01


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_centring_is_a_product_with_the_projection(dtype):
    """γ ⊙ (x − mean) + β as the matrix diag(γ)(I − 11ᵀ/d), in float64; gradients by torch's own differences."""
    draw = torch.Generator().manual_seed(3)
    x = (3 + torch.randn(5, 7, generator=draw, dtype=torch.float64)).to(dtype)
    projection = torch.eye(7, dtype=torch.float64) - 1 / 7
    plain, full = Centring(7, affine=False), Centring(7)
    assert not list(plain.parameters()) and full.weight.eq(1).all() and full.bias.eq(0).all()
    with torch.no_grad():
        for p in full.parameters():
            p.copy_(torch.randn(7, generator=draw))
    full = full.double() if dtype == torch.float64 else full
    weight, bias = (p.detach().double() for p in (full.weight, full.bias))
    expected = x.double() @ projection
    bound = 8 * torch.finfo(dtype).eps * float(x.abs().max())
    for got, wanted in ((plain(x), expected), (full(x), expected * weight + bias)):
        assert got.dtype == dtype
        close(got, wanted, bound * (1 + float(wanted.abs().max())), "centring", "A mean that stays? A division?")
    assert torch.autograd.gradcheck(Centring(7).double(), (x[:2].double().requires_grad_(),))


def test_centring_alone_is_layer_norm_before_its_division():
    models = {norm: model.double() for norm, model in variants(CONFIG, 3).items()}
    ids = token_ids(2, 16)
    close(logits(models["centre"], ids), logits(models["centre-plain"], ids), 1e-12, "logits", "Gains not 1?")
    layer, centre_only = (models[norm].transformer.h[0].ln_1 for norm in ("layer", "centre"))
    x = torch.randn(4, CONFIG.n_embd, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = layer(x) * (x.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt()
    close(centre_only(x), expected, 1e-12, "centred", "Another mean?")
    for norm in ("layer", "none"):
        assert (logits(models["centre"], ids) - logits(models[norm], ids)).abs().max() > 1e-4, f"it is {norm}"


# sizes


def test_the_papers_sizes():
    """M blocks of width d have about 12 M d² parameters; embeddings come on top."""
    blocks = {name: 12 * size.layers * size.width**2 / 1e6 for name, size in SIZES.items()}
    assert {name: round(blocks[name]) for name in ("70M", "160M", "410M", "1B")} == {
        "70M": 19,
        "160M": 85,
        "410M": 302,
        "1B": 805,
    }
    assert all(size.width % size.heads == 0 for size in SIZES.values())


def test_the_model_of_a_size():
    size = Size(layers=3, width=24, heads=2, rate=1e-3, steps=5, length=20)
    model = variants(size.config(50), 0, ("rms",))["rms"]
    assert len(model.transformer.h) == 3 and model.transformer.wte.weight.shape == (50, 24)
    assert model.transformer.wpe.weight.shape == (20, 24) and model.transformer.h[0].attn.num_heads == 2
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0}, "dropout"


# the optimizer


@pytest.mark.parametrize("norm", NORMS)
def test_matrices_decay_and_vectors_do_not(norm):
    """Trainer's own grouping would let the gains of RMSNorm decay, and not those of nn.LayerNorm."""
    model = variants(CONFIG, 3, (norm,))[norm]
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = adamw(model, rate=0.01, decay=0.5)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}
    for name, p in model.named_parameters():
        factor = 1 - 0.01 * 0.5 if p.dim() == 2 else 1.0
        close(p, before[name] * factor, 1e-8, name, "Decay of a gain or a bias? None of a matrix?")


def test_each_parameter_is_in_the_optimizer_once():
    model = variants(CONFIG, 3, ("rms",))["rms"]
    held = [p for group in adamw(model, 1e-3).param_groups for p in group["params"]]
    assert len(held) == len(set(held)) and set(held) == set(model.parameters())
    assert {group["weight_decay"] for group in adamw(model, 1e-3).param_groups} == {0.0, 0.1}


@pytest.mark.parametrize(("steps", "warmup"), [(1, 1), (9, 1), (10, 1), (39, 3), (20_000, 2000), (100_000, 2000)])
def test_the_schedule_by_its_formula(steps, warmup):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    schedule = warmup_cosine(optimizer, steps)
    factor = schedule.lr_lambdas[0]
    for step in {0, 1, 5, warmup - 1, warmup, (warmup + steps) // 2, steps - 1} & set(range(steps)):
        wave = math.cos(math.pi * (step - warmup) / max(1, steps - warmup))
        expected = (step + 1) / warmup if step < warmup else 0.1 + 0.9 * (1 + wave) / 2
        assert factor(step) == pytest.approx(expected, abs=1e-12), f"update {step} of {steps}"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 / warmup), "the first update has no rate, or a full one"
