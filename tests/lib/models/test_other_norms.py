"""Norms along other axes, behind wrappers, and of other kinds: found, or named with the reason."""

import warnings

import normgeom as ng
import pytest
import torch
import transformers
from norm_checks import draw
from normgeom.models.sites import OtherNorm, seen_norms
from tiny_models import Apply, tiny, token_ids
from torch import nn

IMAGES = draw(2, 3, 8, 8, dtype=torch.float32)
ROWS = draw(2, 5, 8, dtype=torch.float32)


class ChannelsFirst(nn.LayerNorm):
    """A LayerNorm of the channels of images, ``(batch, channel, row, column)``, as ConvNeXt has it."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


IMAGE_FAMILIES = {
    "convnext": (
        "ConvNext",
        dict(image_size=16, patch_size=4, num_stages=2, hidden_sizes=[8, 16], depths=[1, 2]),
        # three blocks and the last on the mean of the places; the two others are over channels
        4,
    ),
    "resnet, no LayerNorm": ("ResNet", dict(embedding_size=8, hidden_sizes=[8], depths=[1]), 0),
}


@pytest.mark.filterwarnings("ignore:seen and not measured")
@pytest.mark.parametrize(("family", "settings", "count"), IMAGE_FAMILIES.values(), ids=IMAGE_FAMILIES)
def test_hand_counts_of_image_models(family, settings, count):
    config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}Model")(config).eval()
    sites = ng.find_norms(model, {"pixel_values": draw(2, 3, 16, 16, dtype=torch.float32)})
    assert len(sites) == count, [site.name for site in sites]


class Parts(nn.Module):
    """A norm in parts, with a place to look at each step, as TransformerLens writes it."""

    def __init__(self, d):
        super().__init__()
        self.norm = nn.Identity()
        self.hook_normalized = nn.Identity()
        self.weight = nn.Parameter(draw(d, dtype=torch.float32))

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.weight * self.hook_normalized(x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())


def test_a_norm_that_has_parts():
    """Found as the smallest module that is a norm, and once."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Parts(8), nn.Dropout()), nn.Sequential(nn.LayerNorm(8)))
    assert [(site.name, site.kind) for site in ng.find_norms(model, ROWS)] == [("1.0", "layer"), ("2.0", "layer")]


COMPILED = {
    "wrapped": lambda model: torch.compile(model, backend="eager"),
    "in place": lambda model: model.compile(backend="eager") or model,
}


@pytest.mark.parametrize("compiled", COMPILED.values(), ids=COMPILED)
def test_a_compiled_model(compiled):
    """It has run before: what was compiled then knows no hooks."""
    model, ids = compiled(tiny("gpt2")), token_ids(2, 5)
    with torch.no_grad():
        model(ids)
    sites = ng.find_norms(model, ids)
    assert len(sites) == 5, "run around its modules?"
    seen = []
    with torch.no_grad(), ng.watch(model, sites, lambda site, *_: seen.append(site.name)):
        model(ids)
    assert len(seen) == 5, "watched around its modules?"
    assert ng.Survey(model, example_inputs=ids).run([ids], progress=False).tokens == 10


@pytest.mark.parametrize("first", [True, False], ids=["pre-norm", "post-norm"])
def test_torchs_encoder_in_evaluation(first):
    """Its fast path runs around its modules."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not first).eval()
    assert len(ng.find_norms(model, ROWS)) == 4
    result = ng.Survey(model, ["uniform"], example_inputs=ROWS).run([ROWS], progress=False)
    assert result.tokens == 10
    counted = result.table().query("side == 'in'").groupby("positions").tokens.unique()
    assert (counted["all"].tolist(), counted["first"].tolist()) == ([10], [2])
    assert torch.backends.mha.get_fastpath_enabled(), "the setting is left as it was"


def clip():
    config = transformers.CLIPConfig(
        text_config=dict(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            eos_token_id=1,
        ),
        vision_config=dict(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=16,
            patch_size=4,
        ),
        projection_dim=16,
    )
    return transformers.CLIPModel(config).eval()


def test_images_beside_texts():
    """Every row counts, and none is first."""
    batch = dict(input_ids=token_ids(2, 7), pixel_values=draw(2, 3, 16, 16, dtype=torch.float32))
    sites = ng.find_norms(clip(), batch)
    assert len(sites) == 11 and {site.token_axis for site in sites} == {None}
    survey = ng.Survey(clip(), ["uniform"], example_inputs=batch).run([batch], progress=False)
    counted = survey.table().query("side == 'in'").pivot(index="site", columns="positions", values="tokens")
    assert counted.loc["text_model.final_layer_norm"].to_dict() == {"all": 14, "first": 0, "rest": 14}
    assert counted.loc["vision_model.pre_layrnorm"].to_dict() == {"all": 34, "first": 0, "rest": 34}
    padded = dict(batch, attention_mask=torch.tensor([[1] * 7, [1] * 4 + [0] * 3]))
    with pytest.raises(ValueError, match=r"does not show which of its rows are padding"):
        survey.run([padded], progress=False)


class GatedNorm(nn.Module):
    def forward(self, x, gate):
        return ng.rms_norm(x) * torch.sigmoid(gate)


class Gating(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = GatedNorm()

    def forward(self, x):
        return self.norm(x, gate=x)


class Within(nn.Module):
    """A norm that is written out in a module that does more."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(nn.functional.layer_norm(x, (8,)))


class NotRun(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.RMSNorm(8)

    def forward(self, x):
        return self.linear(x)


def silent():
    norm = nn.LayerNorm(8)
    nn.init.zeros_(norm.weight)
    return norm


SEEN = {
    "batch norm": (nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3)), IMAGES, ["BatchNorm over the batch"] * 2),
    "group norm": (nn.Sequential(nn.GroupNorm(3, 6)), draw(2, 6, 4, 4).float(), ["GroupNorm over groups of channels"]),
    "one group": (
        nn.Sequential(nn.GroupNorm(1, 6)),
        draw(2, 6, 4, 4).float(),
        ["GroupNorm not over the last axis alone"],
    ),
    "instance norm": (nn.Sequential(nn.InstanceNorm2d(3)), IMAGES, ["InstanceNorm2d not over the last axis alone"]),
    "several axes": (nn.Sequential(nn.LayerNorm((3, 8, 8))), IMAGES, ["LayerNorm not over the last axis alone"]),
    "gated": (Gating(), ROWS, ["GatedNorm with a second input"]),
    "written out": (Within(), ROWS, ["LayerNorm that its module's output does not show"]),
    "not run": (NotRun(), ROWS, ["RMSNorm that was not seen to run"]),
    "a gain of zeros": (nn.Sequential(silent()), ROWS, ["LayerNorm that its module's output does not show"]),
    "channels": (nn.Sequential(ChannelsFirst(3)), IMAGES, ["ChannelsFirst not over the last axis alone"]),
    "channels of texts": (
        nn.Sequential(nn.Embedding(64, 8), Apply(lambda x: x.mT), ChannelsFirst(8)),
        token_ids(2, 5),
        ["ChannelsFirst not over the last axis alone"],
    ),
}


@pytest.mark.parametrize(("model", "example", "expected"), SEEN.values(), ids=SEEN)
def test_what_is_seen_and_not_measured(model, example, expected):
    others = seen_norms(model, example)[1]
    assert all(isinstance(other, OtherNorm) for other in others)
    got = [f"{other.kind} {other.reason}" for other in others]
    assert len(got) == len(expected) and all(a.startswith(b) for a, b in zip(got, expected, strict=True)), got
    with pytest.warns(UserWarning, match=rf"^seen and not measured: {len(expected)} {expected[0]}") as warned:
        assert ng.find_norms(model, example) == []
    assert len(warned) == 1, [str(w.message) for w in warned]
    message = rf"^model: this {type(model).__name__} runs no LayerNorm or RMSNorm that can be measured"
    with pytest.raises(ValueError, match=message):
        ng.Survey(model, example_inputs=example)


SILENT = {
    "a gate of one number a channel": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Sigmoid()),
    "softmax over channels": nn.Sequential(nn.Softmax(1)),
    "softmax over rows": nn.Sequential(nn.Softmax(2)),
    "convolution": nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()),
}


@pytest.mark.parametrize("model", SILENT.values(), ids=SILENT)
def test_what_is_no_norm_of_any_kind(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ng.find_norms(model, IMAGES) == []
    assert seen_norms(model, IMAGES) == ([], [])
    with pytest.raises(ValueError, match=r"^model: this Sequential runs no LayerNorm or RMSNorm that can be measured"):
        ng.Survey(model, example_inputs=IMAGES)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:.*leaf Tensor:UserWarning")
def test_a_scripted_model():
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))
    ((name, kind, reason),) = seen_norms(model, ROWS)[1]
    assert (name, kind, reason) == ("1", "LayerNorm", "that was not seen to run")


class Handle:
    """What a tool wraps around a model that it traces, as nnsight does."""

    def __init__(self, module):
        self.path, self._module = "model", module


def test_what_is_no_module_but_holds_one():
    message = r"^model: expected a torch\.nn\.Module, got a Handle; it holds one, pass its \._module"
    for use in (ng.find_norms, ng.Survey):
        with pytest.raises(TypeError, match=message):
            use(Handle(tiny("gpt2")))
    with pytest.raises(TypeError, match=r"^model: expected a torch\.nn\.Module, got a str$"):
        ng.find_norms("gpt2")
