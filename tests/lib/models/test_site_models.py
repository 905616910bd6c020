"""find_norms on a tiny model of each family, against what the source of its architecture says."""

import normgeom as ng
import pytest
import torch
from family_norms import EXPECTED
from norm_checks import close, draw
from tiny_models import FAMILIES, Apply, randomise_norms, tiny, token_ids
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:seen and not measured")
LENGTH = 7
IMAGES = {"vit": 8, "dinov2": 8, "swin": 8, "convnextv2": 16, "clip_vision": 8, "siglip_vision": 8}
IDS = {"input_ids": token_ids(2, LENGTH)}
BATCHES = {
    **dict.fromkeys(FAMILIES, IDS),
    **{family: {"pixel_values": draw(2, 3, size, size, dtype=torch.float32)} for family, size in IMAGES.items()},
    **{family: {**IDS, "decoder_input_ids": token_ids(2, LENGTH, seed=1)} for family in ("t5", "bart")},
    "whisper": dict(input_features=draw(2, 8, 18, dtype=torch.float32), decoder_input_ids=token_ids(2, LENGTH)),
    "wav2vec2": dict(input_values=draw(2, 400, dtype=torch.float32)),
}
# text and images it makes by itself
EXAMPLES = {family: BATCHES[family] for family in ("whisper", "wav2vec2")}
EPS_SETTINGS = {
    "layer_norm_epsilon": ("gpt2", "gpt_neo", "gptj", "bloom", "falcon", "mpt", "t5", "mamba2"),
    "layer_norm_eps": ("gpt_neox", "phi", "stablelm", "persimmon", "cohere_qk", "bert", "deberta_v2", "vit"),
    "rms_norm_eps": (
        "llama",
        "mistral",
        "qwen3",
        "gemma",
        "gemma3",
        "olmo2",
        "nanochat",
        "llama4",
        "phimoe",
        "granite",
    ),
    "norm_eps": ("nemotron", "lfm2", "modernbert"),
    "norm_epsilon": ("starcoder2",),
}


def drawn(family):
    """A tiny model all of whose norms have random gains and biases, whether find_norms finds them or not."""
    model = tiny(family)
    randomise_norms(model, [model.get_submodule(norm.name) for norm in EXPECTED[family]])
    return model


def found(model, family):
    return ng.find_norms(model, EXAMPLES.get(family))


def test_every_family_is_described():
    assert set(EXPECTED) == set(FAMILIES)
    assert all(len({norm.name for norm in norms}) == len(norms) for norms in EXPECTED.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site(family):
    model = drawn(family)
    sites = found(model, family)
    got, names = [site.name for site in sites], [norm.name for norm in EXPECTED[family]]
    assert set(got) >= set(names), f"missed: {set(names) - set(got)}. Hidden by a random gain, or a module not run?"
    assert set(got) <= set(names), f"taken for norms: {set(got) - set(names)}. Gated, or over another axis?"
    assert got == names, "in the order of the modules, not of the forward pass?"
    for site, norm in zip(sites, EXPECTED[family], strict=True):
        module = model.get_submodule(norm.name)
        assert site.module is module
        assert (site.kind, site.dim) == (norm.kind, norm.dim), f"{norm.name}: judged by its name?"
        assert site.eps == norm.eps, (
            f"{norm.name}: ε = {site.eps}, not {norm.eps}. The configuration's, not the acting?"
        )
        assert site.token_axis == norm.axis, f"{norm.name}: positions on axis {site.token_axis}. Heads or texts?"
        close(site.weight, norm.gain_of(module), 1e-4, f"{norm.name}: gain", f"It is made as {norm.gain}.")
        close(site.bias, norm.bias_of(module), 1e-4, f"{norm.name}: bias", "That of the first head? None for zeros?")
        assert site.weight.dtype == site.bias.dtype == torch.float32


@pytest.mark.parametrize(("setting", "family"), [(s, f) for s, families in EPS_SETTINGS.items() for f in families])
def test_epsilon_of_the_configuration(setting, family):
    got = {site.name: site.eps for site in ng.find_norms(tiny(family, **{setting: 3e-4}))}
    assert set(got.values()) == {3e-4}, f"{got}. The usual ε of the family, not the acting?"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_site_predicts_its_module(family):
    """Kind, gain, bias and ε together say what the module does with what the model feeds it, and with less of it."""
    model = drawn(family)
    seen = []

    def check(site, x, y):
        seen.append(site.name)
        normalise = ng.layer_norm if site.kind == "layer" else ng.rms_norm
        for factor, output in ((1.0, y), (1e-3, site.module.forward(1e-3 * x))):
            got = normalise(factor * x, eps=site.eps) * site.weight + site.bias
            close(got, output, 2e-3, f"{site.name}, input times {factor}", "Gated? ε, gain or kind read wrongly?")

    sites = found(model, family)
    with torch.no_grad(), ng.watch(model, sites, check):
        model(**BATCHES[family])
    assert set(seen) == {norm.name for norm in EXPECTED[family]}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_survey_of_one_batch(family):
    """Every norm measures something, and one position of each text is its first."""
    survey = ng.Survey(tiny(family), ["random_a"], example_inputs=EXAMPLES.get(family))
    table = survey.run([BATCHES[family]], progress=False).table().set_index(["site", "side", "positions"]).sort_index()
    for norm in EXPECTED[family]:
        rows = table.loc[norm.name, "out"]
        counted = {name: rows.tokens[name] for name in ("first", "all")}
        assert counted["all"] > 0 and 0 < rows.mean_deg["all"] < 180, f"{norm.name}: measured {counted}"
        if norm.axis is None:
            assert counted["first"] == 0, f"{norm.name}: a first position of flattened tokens or of an image, {counted}"
        elif "input_ids" in BATCHES[family]:
            assert counted["all"] == LENGTH * counted["first"], f"{norm.name}: {counted}. Heads taken for positions?"


class Gated(nn.Module):
    """Mamba2's, which normalises the product with the gate, or Qwen3-Next's, which normalises before."""

    def __init__(self, before: bool):
        super().__init__()
        self.norm_before_gate = before

    def forward(self, x, gate=None):
        if gate is None:
            return ng.rms_norm(x)
        act = torch.nn.functional.silu(gate)
        return ng.rms_norm(x) * act if self.norm_before_gate else ng.rms_norm(x * act)


class Feeding(nn.Module):
    """A model that hands its norm what ``arguments`` makes of the input."""

    def __init__(self, norm, arguments):
        super().__init__()
        self.norm, self.arguments = norm, arguments

    def forward(self, input):
        args, kwargs = self.arguments(input)
        return self.norm(*args, **kwargs)


GATES = {
    "by position": lambda x: ((x, x), {}),
    "by keyword": lambda x: ((x,), {"gate": x}),
    "all by keyword": lambda x: ((), {"x": x, "gate": x}),
}
X = draw(2, 5, 8, dtype=torch.float32)


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("before", [True, False], ids=["norm, then gate", "gate, then norm"])
def test_a_gated_norm_is_not_found(before, gate):
    assert ng.find_norms(Feeding(Gated(before), gate), X) == [], (
        "its output taken for a function of its first argument?"
    )


@pytest.mark.parametrize("arguments", [lambda x: ((x,), {}), lambda x: ((x, None), {})], ids=["no gate", "None"])
def test_a_gated_norm_without_its_gate_is_found(arguments):
    (site,) = ng.find_norms(Feeding(Gated(True), arguments), X)
    assert site.kind == "rms"


@pytest.mark.parametrize(("family", "gated"), [("mamba2", "mixer.norm"), ("qwen3_next", "linear_attn.norm")])
def test_the_gated_norms_of_models_do_run(family, gated):
    """They are left out because of the gate, not because the example does not reach them."""
    model, calls = tiny(family), []
    modules = [module for name, module in model.named_modules() if name.endswith(gated)]
    for module in modules:
        module.register_forward_hook(lambda *_: calls.append(1))
    sites = ng.find_norms(model)
    assert modules and len(calls) == len(modules), "the example must run them"
    assert not {site.module for site in sites} & set(modules)


class PerHead(nn.Module):
    """A LayerNorm with gains and biases of the given shape."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(draw(*shape, seed=1, dtype=torch.float32))
        self.bias = nn.Parameter(draw(*shape, seed=2, dtype=torch.float32))

    def forward(self, x):
        return self.weight * ng.layer_norm(x) + self.bias


@pytest.mark.parametrize("heads", [1, 2, 4, 5])
@pytest.mark.parametrize("behind", [True, False], ids=["token, head", "head, token"])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"input": x}], ids=["tensor", "mapping"])
def test_gains_of_each_head(wrap, behind, heads):
    x = draw(2, 11, 8 * heads, dtype=torch.float32)
    split = Apply(lambda x: x.unflatten(-1, (heads, 8)) if behind else x.unflatten(-1, (heads, 8)).transpose(1, 2))
    norm = PerHead(heads, 8) if behind else PerHead(heads, 1, 8)
    sites = ng.find_norms(Feeding(nn.Sequential(split, norm), lambda x: ((x,), {})), wrap(x))
    assert [site.module for site in sites] == [norm], "rows of the probe broadcast against the heads?"
    expected = norm.weight.reshape(8) if heads == 1 else norm.weight
    close(sites[0].weight, expected, 1e-4, "gain", "That of the first head?")
    got = ng.layer_norm(split(x)) * sites[0].weight + sites[0].bias
    close(got, norm(split(x)), 1e-4, "prediction", "Not to be broadcast?")


def test_heads_with_the_same_gain_have_one():
    norm = PerHead(3, 8)
    norm.weight.data[:], norm.bias.data[:] = norm.weight.data[0], norm.bias.data[0]
    (site,) = ng.find_norms(nn.Sequential(norm), draw(2, 5, 3, 8, dtype=torch.float32))
    assert site.weight.shape == site.bias.shape == (8,), "one copy a head?"


def test_a_gain_of_each_position_is_not_a_norms():
    assert ng.find_norms(nn.Sequential(PerHead(5, 8)), X) == [], "taken for gains of heads?"


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1e3])
def test_small_and_large_gains(size):
    norm = nn.RMSNorm(8, eps=1e-5)
    norm.weight.data = size * draw(8, seed=3, dtype=torch.float32)
    sites = ng.find_norms(nn.Sequential(norm), X)
    assert [site.eps for site in sites] == [1e-5], "small outputs taken for none?"
    close(sites[0].weight / size, norm.weight / size, 1e-4, "gain", "Compared with 1, not with the outputs?")


def test_a_bound_on_the_length_is_not_a_norm():
    """Long rows are shortened to one length, as by a norm; short ones pass as they are."""
    clip = Apply(lambda x: x * (3 / x.norm(dim=-1, keepdim=True)).clamp(max=1))
    assert ng.find_norms(nn.Sequential(clip), X) == [], "judged by long rows alone?"


def test_epsilon_outside_the_root():
    outside = Apply(lambda x: x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-3))
    (site,) = ng.find_norms(nn.Sequential(outside), X)
    half = 1e-3 / (2**0.5 - 1)  # where (σ / (σ + ε))² is a half
    assert site.eps == pytest.approx(half**2, rel=0.1), "the ε inside that halves the square of the same row"


@pytest.mark.parametrize("d", [2, 3, 5, 8, 16, 64])
@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm], ids=lambda make: make.__name__)
def test_no_epsilon_in_any_dimension(make, d):
    norm = make(d, eps=0.0)
    norm.weight.data = draw(d, seed=4, dtype=torch.float32)
    sites = ng.find_norms(nn.Sequential(norm), draw(2, 5, d, dtype=torch.float32))
    assert len(sites) == 1 and 0 <= sites[0].eps < 1e-15, f"{sites}: a rounding error taken for ε?"


@pytest.mark.parametrize("d", [2, 3, 8])
def test_a_large_epsilon_in_few_dimensions(d):
    """Two random numbers are often close together: a probe's rows must be long, not only large."""
    sites = ng.find_norms(nn.Sequential(nn.LayerNorm(d, eps=1.0)), draw(2, 5, d, dtype=torch.float32))
    assert [site.eps for site in sites] == [1.0], "rows so short that ε counts?"


def test_a_number_that_does_not_act_is_not_epsilon():
    norm = Apply(lambda x: ng.rms_norm(x, eps=3e-4))
    norm.eps, norm.dropout, norm.scale = 1e-5, 0.1, 3.2e-4
    (site,) = ng.find_norms(nn.Sequential(norm), X)
    assert site.eps == 3e-4, "read off an attribute, not off the outputs?"


JOINT = {"texts": (0, 3), "tokens": (1, 3), "heads": (2, 3), "tokens of one entry": (1,), "heads of one entry": (2,)}


@pytest.mark.parametrize("axes", JOINT.values(), ids=JOINT)
def test_a_norm_over_other_axes_is_not_found(axes):
    norm = Apply(lambda x: x * torch.rsqrt(x.square().mean(axes, keepdim=True) + 1e-6))
    assert ng.find_norms(nn.Sequential(norm), draw(2, 5, 3, 8, dtype=torch.float32)) == [], (
        "rows that share their length with others?"
    )


def test_a_module_that_refuses_the_probe_is_not_a_norm():
    def strict(x):
        assert x.shape == X.shape
        return 2 * x

    sites = ng.find_norms(nn.Sequential(Apply(strict), nn.LayerNorm(8)), X)
    assert [site.name for site in sites] == ["1"], "an error of one module ends the search?"


@pytest.mark.parametrize(
    ("reshape", "axis"),
    [
        (lambda x: x, 1),
        (lambda x: x.transpose(0, 1), 0),
        (lambda x: x.flatten(0, 1), None),
        (lambda x: x.reshape(-1, 2, 4), None),
        (lambda x: x.unflatten(-1, (2, 4)), 1),
        (lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2), 2),
    ],
    ids=["text, token", "token, text", "flattened", "flattened, head", "text, token, head", "text, head, token"],
)
def test_where_the_positions_are(reshape, axis):
    norm = nn.LayerNorm(reshape(X).shape[-1])
    (site,) = ng.find_norms(nn.Sequential(Apply(reshape), norm), X)
    assert site.token_axis == axis, (
        f"{tuple(reshape(X).shape)}: the texts' or the heads' axis taken for the positions'?"
    )
