"""find_norms on modules made for the purpose: what is a norm, what is not, and what it reads off one."""

import normgeom as ng
import pytest
import torch
from norm_checks import close, draw
from normgeom.models.sites import NormSite
from tiny_models import VOCABULARY, Apply, tiny, token_ids
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:seen and not measured")
ROWS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def found(*modules, inputs=ROWS):
    return ng.find_norms(nn.Sequential(nn.Linear(8, 8), *modules).eval(), inputs)


def test_one_layer_norm():
    norm = nn.LayerNorm(8, eps=1e-3)
    (site,) = found(norm)
    assert isinstance(site, NormSite)
    assert (site.name, site.kind, site.dim, site.eps, site.token_axis) == ("1", "layer", 8, 1e-3, 1)
    assert site.module is norm


def test_one_rms_norm():
    (site,) = found(nn.RMSNorm(8, eps=1e-3))
    assert (site.kind, site.eps) == ("rms", 1e-3)


@pytest.mark.parametrize("make", [ng.LayerNorm, ng.RMSNorm], ids=lambda make: make.__name__)
def test_our_own_modules(make):
    (site,) = found(make(8))
    assert site.kind == ("layer" if make is ng.LayerNorm else "rms")
    assert site.eps == make(8).eps


def test_gain_and_shift_are_those_that_act():
    norm = nn.LayerNorm(8)
    norm.weight.data, norm.bias.data = draw(8, dtype=torch.float32), draw(8, seed=1, dtype=torch.float32)
    (site,) = found(norm)
    close(site.weight, norm.weight, 1e-5, "gain", "Up to its sign? Divided by √d?")
    close(site.bias, norm.bias, 1e-5, "shift", "Mean of two outputs of one sign?")
    assert site.weight.dtype == site.bias.dtype == torch.float32


@pytest.mark.parametrize("norm", [nn.LayerNorm(8, elementwise_affine=False), nn.LayerNorm(8, bias=False)], ids=str)
def test_a_missing_gain_is_one_and_a_missing_shift_zero(norm):
    (site,) = found(norm)
    close(site.weight, torch.ones(8), 1e-5, "gain", "None for ones?")
    close(site.bias, torch.zeros(8), 1e-5, "shift", "None for zeros?")


@pytest.mark.parametrize("zeros", [1, 3, 7])
def test_some_zero_gains(zeros):
    norm = nn.LayerNorm(8)
    norm.weight.data[:zeros] = 0
    (site,) = found(norm)
    close(site.weight, norm.weight, 1e-5, "gain with zeros", "Divided by the gain?")


def test_a_gain_of_zeros_shows_nothing():
    norm = nn.LayerNorm(8)
    nn.init.zeros_(norm.weight)
    assert found(norm) == []


@pytest.mark.parametrize("eps", [1e-12, 1e-8, 1.2345e-5, 1e-2, 1.0])
@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm], ids=lambda make: make.__name__)
def test_epsilon_is_the_exact_number_of_the_module(make, eps):
    (site,) = found(make(8, eps=eps))
    assert site.eps == eps


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 3e-4])
def test_epsilon_is_measured_where_no_attribute_holds_it(eps):
    (site,) = found(Apply(lambda x: ng.rms_norm(x, eps=eps)))
    assert site.eps == pytest.approx(eps, rel=0.02)


def test_no_epsilon():
    (site,) = found(nn.LayerNorm(8, eps=0.0))
    assert site.eps < 1e-15


def test_length_normalisation_is_an_rms_norm_with_a_gain():
    (site,) = found(Apply(lambda x: x / x.norm(dim=-1, keepdim=True)))
    assert site.kind == "rms"
    close(site.weight, torch.full((8,), 8**-0.5), 1e-5, "gain of x/‖x‖", "Missing √d?")


NOT_NORMS = {
    "batch norm": nn.BatchNorm1d(5),
    "group norm": nn.GroupNorm(1, 5),
    "softmax": nn.Softmax(-1),
    "identity": nn.Identity(),
    "linear": nn.Linear(8, 8),
    "dropout": nn.Dropout(0.5),
    "sign": Apply(torch.sign),
    "relu": nn.ReLU(),
    "tanh": nn.Tanh(),
    "zero": Apply(torch.zeros_like),
    "L1 normalisation": Apply(lambda x: x / x.abs().sum(-1, keepdim=True)),
    "maximum normalisation": Apply(lambda x: x / x.abs().amax(-1, keepdim=True)),
    "centring without scaling": Apply(lambda x: x - x.mean(-1, keepdim=True)),
    "norm over all rows": Apply(lambda x: x / x.pow(2).mean().sqrt()),
    "absolute value of a norm": Apply(lambda x: ng.rms_norm(x).abs()),
}


@pytest.mark.parametrize("module", NOT_NORMS.values(), ids=NOT_NORMS)
def test_what_is_not_a_norm_is_not_found(module):
    assert found(module, nn.LayerNorm(8))[0].name == "2", "something else was taken for a norm"


def test_batch_norm_over_features_is_not_found():
    trained = nn.BatchNorm1d(8)
    trained.running_var.fill_(3.0)
    model = nn.Sequential(nn.Linear(8, 8), trained)
    assert ng.find_norms(model, draw(6, 8, dtype=torch.float32)) == []


def test_order_is_that_of_the_forward_pass():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.unused, self.first = nn.LayerNorm(8), nn.LayerNorm(8), nn.RMSNorm(8)

        def forward(self, x):
            return self.last(self.first(x) + self.last(x))

    assert [site.name for site in ng.find_norms(Backwards(), ROWS)] == ["first", "last"], (
        "execution order, each once, and only norms that run"
    )


def test_rows_without_positions_have_no_token_axis():
    (site,) = found(nn.LayerNorm(8), inputs=ROWS[0])
    assert site.token_axis is None


def test_the_model_is_a_norm_itself():
    (site,) = ng.find_norms(nn.LayerNorm(8), ROWS)
    assert (site.name, site.kind) == ("", "layer")


def test_a_norm_called_by_keyword():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x):
            return self.norm(input=x)

    assert [site.name for site in ng.find_norms(Keyword(), ROWS)] == ["norm"]


def test_half_precision_models():
    model = tiny("llama").to(torch.bfloat16)
    assert [site.kind for site in ng.find_norms(model)] == ["rms"] * 5


def test_examples_of_one_model_agree():
    model, ids = tiny("gpt2"), token_ids(2, 9)
    expected = [(s.name, s.kind, s.eps, s.token_axis) for s in ng.find_norms(model)]
    for example in (ids, {"input_ids": ids}, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}):
        assert [(s.name, s.kind, s.eps, s.token_axis) for s in ng.find_norms(model, example)] == expected
    with_vectors = {"inputs_embeds": torch.randn(2, 9, 32)}
    assert [s.name for s in ng.find_norms(model, with_vectors)] == [name for name, *_ in expected]


def test_a_model_without_norms():
    assert ng.find_norms(nn.Sequential(nn.Linear(8, 8), nn.GELU()), ROWS) == []


def test_a_model_that_needs_an_example_says_so():
    with pytest.raises(TypeError, match=r"^example_inputs: none given, and none can be made for a Sequential"):
        ng.find_norms(nn.Sequential(nn.LayerNorm(8)))


def test_a_model_without_parameters():
    (site,) = ng.find_norms(nn.Sequential(nn.LayerNorm(8, elementwise_affine=False)), ROWS)
    assert site.kind == "layer"


def test_probing_does_not_call_the_users_hooks():
    """One call for the example's forward pass, none for the probes."""
    norm, calls = nn.LayerNorm(8), []
    norm.register_forward_hook(lambda *_: calls.append("forward"))
    found(norm)
    assert calls == ["forward"], f"the user's hook ran {len(calls)} times: copied with the module?"


@pytest.mark.parametrize("family", ["gpt2", "t5", "vit"])
def test_the_global_generator_is_left_alone(family):
    model, before = tiny(family), torch.get_rng_state()
    ng.find_norms(model)
    assert torch.equal(torch.get_rng_state(), before), "random numbers drawn from the global generator"


def hooks_and_modes(model):
    return {name: (len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for name, m in model.named_modules()}


def test_the_model_is_left_as_it_was():
    model = tiny("gpt2")
    model.train()
    model.transformer.h[0].eval()
    before, weights = hooks_and_modes(model), {k: v.clone() for k, v in model.state_dict().items()}
    ng.find_norms(model)
    assert hooks_and_modes(model) == before, "hooks left behind, or another mode"
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items()), "weights changed"
    assert all(p.grad is None for p in model.parameters())


def test_the_model_is_left_as_it_was_after_an_error():
    model = tiny("gpt2").train()
    before = hooks_and_modes(model)
    with pytest.raises(IndexError):
        ng.find_norms(model, torch.full((1, 4), VOCABULARY))
    assert hooks_and_modes(model) == before, "hooks left behind, or another mode"


def test_the_default_dtype_does_not_matter():
    norms = nn.LayerNorm(8, eps=1e-3), nn.RMSNorm(8, eps=1e-4)
    torch.set_default_dtype(torch.float64)
    try:
        sites = found(*(norm.double() for norm in norms), inputs=ROWS.double())
    finally:
        torch.set_default_dtype(torch.float32)
    assert [(s.kind, s.eps, s.weight.dtype) for s in sites] == [
        ("layer", 1e-3, torch.float32),
        ("rms", 1e-4, torch.float32),
    ], "probed in float64 while the copy is float32?"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_weights_that_are_loaded_when_they_are_needed(family, tmp_path):
    """accelerate's hooks replace forward and leave empty tensors: what is found must be what acts."""
    model = varied(tiny(family))
    model.save_pretrained(tmp_path / "model")
    first, *others = (name for name, _ in model.base_model.named_children())
    places = {first: "cpu", **dict.fromkeys(others, "disk")}
    options = dict(device_map=places, offload_folder=tmp_path / "offload")
    offloaded = type(model.base_model).from_pretrained(tmp_path / "model", **options)
    assert any(p.is_meta for p in offloaded.parameters()), "nothing was left on the disk: the test would show nothing"
    sites = ng.find_norms(offloaded)
    for site, there in zip(sites, ng.find_norms(model.base_model), strict=True):
        assert (site.name, site.kind, site.eps) == (there.name, there.kind, there.eps)
        close(site.weight, there.weight, 0, f"{site.name}: gain", "Probed before the weights were there?")
    ids = token_ids(2, 5)
    tables = [ng.Survey(m).run([ids], progress=False).table() for m in (offloaded, model.base_model)]
    assert tables[0].equals(tables[1])


def varied(model):
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
    return model
