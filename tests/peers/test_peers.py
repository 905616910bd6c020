"""find_norms and a survey on the models of other packages, random weights, against counts made by hand."""

import copy
import re
import warnings
from typing import NamedTuple

import normgeom as ng
import pytest
import torch
import transformers

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.randint(2, 64, (2, 11), generator=torch.Generator().manual_seed(0))
VOCABULARY, WIDTH = 64, 32


def logits_of(output):
    return output if isinstance(output, torch.Tensor) else output.logits


def images(size, channels=3):
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def timm(name, size=64, **settings):
    def make(package):
        return package("timm").create_model(name, pretrained=False, **settings).eval(), images(size)

    return make


def torchvision(name, *sizes, size=64):
    def make(package):
        return getattr(package("torchvision.models"), name)(*sizes).eval(), images(size)

    return make


def x_transformers(**settings):
    def make(package):
        theirs = package("x_transformers")
        layers = theirs.Decoder(dim=WIDTH, depth=2, heads=4, **settings)
        return theirs.TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=64, attn_layers=layers).eval(), IDS

    return make


def unet(package):
    model = package("diffusers").UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        norm_num_groups=8,
    )
    times, text = torch.tensor([1, 2]), torch.randn(2, 7, WIDTH)
    return model.eval(), dict(sample=images(16, 4), timestep=times, encoder_hidden_states=text)


def diffusion_transformer(package):
    model = package("diffusers").DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        num_embeds_ada_norm=10,
        norm_num_groups=8,
    )
    numbers = torch.tensor([1, 2])
    return model.eval(), dict(hidden_states=images(8, 4), timestep=numbers, class_labels=numbers)


def gpt2():
    ends = dict(bos_token_id=None, eos_token_id=None)
    config = transformers.GPT2Config(n_layer=3, n_embd=WIDTH, n_head=4, vocab_size=VOCABULARY, n_positions=64, **ends)
    return transformers.GPT2LMHeadModel(config).eval()


def bridge(package):
    return bridged(package, gpt2()), IDS


def traced(package):
    return package("nnsight").NNsight(gpt2())._module, IDS


def clip(package):
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    config = transformers.CLIPConfig(
        text_config=dict(sizes, vocab_size=VOCABULARY, eos_token_id=1),
        vision_config=dict(sizes, image_size=16, patch_size=4),
        projection_dim=16,
    )
    return transformers.CLIPModel(config).eval(), dict(input_ids=IDS, pixel_values=images(16))


def convnext(package):
    config = transformers.ConvNextConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32])
    return transformers.ConvNextModel(config).eval(), images(64)


def encoder(package):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 16)


class Counted(NamedTuple):
    """A model and what its source says of it.

    Attributes:
        make: the model, and what it takes.
        norms: how many LayerNorms and RMSNorms of single vectors it runs.
        others: what else of norms it runs, by name.
        first: how many vectors in all stand first in a text, where two texts run.
    """

    make: object
    norms: int
    others: dict[str, int] | None = None
    first: int = 0


BATCH = "BatchNorm2d"
MODELS = {
    # rows of the table that were wrong: images, gates, channels first, the fast path
    "CLIP": Counted(clip, 11, first=2 * 10),  # 5 of texts, 6 of images, of which the last reads no sequence
    # over channels those after the embedding and 3 between the stages; measured 4 blocks, and the last on the mean
    "ConvNeXt, transformers": Counted(convnext, 5, {"ConvNextLayerNorm": 4}),
    "ConvNeXt, timm": Counted(timm("convnext_atto"), 0, {"LayerNorm2d": 17}),  # 1 + 12 + 3 + 1
    # groups: 8 residual blocks of 2, 4 attentions of 1, one at the end; vectors: 3 in each of the 4 attentions
    "UNet, diffusers": Counted(unet, 12, {"GroupNorm": 21}),
    "torch's encoder, post-norm": Counted(encoder, 4, first=2 * 4),
    "bridge of TransformerLens": Counted(bridge, 7, first=2 * 7),
    "nnsight's inner model": Counted(traced, 7, first=2 * 7),
    # and others of the packages
    "ViT, timm": Counted(timm("vit_tiny_patch16_224", 224), 25),  # 2 · 12 + 1
    "Swin, timm": Counted(timm("swin_tiny_patch4_window7_224", 224), 29),  # 1 + 2 · 12 + 3 + 1
    "MLP-Mixer, timm": Counted(timm("mixer_s32_224", 224), 17),  # 2 · 8 + 1
    "PoolFormer, timm": Counted(
        timm("poolformer_s12"), 0, {"GroupNorm1": 24, "LayerNorm2d": 1}
    ),  # 2 · 12, one on the mean
    "CoAtNet, timm": Counted(
        timm("coatnet_pico_rw_224", 224), 0, {"BatchNormAct2d": 16, "LayerNorm2d": 15}
    ),  # 2 · 7 + 1
    "ViT, torchvision": Counted(torchvision("VisionTransformer", 32, 8, 2, 2, 16, 32, size=32), 5),
    "Swin, torchvision": Counted(
        torchvision("SwinTransformer", [4, 4], 16, [1, 1], [2, 2], [2, 2], size=32), 7
    ),  # 1 + 2 · 2 + 1 + 1
    "ResNet, torchvision": Counted(torchvision("resnet18"), 0, {BATCH: 20}),
    "x-transformers": Counted(x_transformers(), 5, first=2 * 5),
    "x-transformers, RMSNorm": Counted(x_transformers(use_rmsnorm=True), 5, first=2 * 5),
    "x-transformers, without gains": Counted(x_transformers(use_simple_rmsnorm=True), 5, first=2 * 5),
    "x-transformers, one gain": Counted(x_transformers(use_scalenorm=True), 5, first=2 * 5),
    "x-transformers, sandwich": Counted(x_transformers(sandwich_norm=True), 9, first=2 * 9),
    "x-transformers, tanh": Counted(x_transformers(use_dynamic_tanh=True), 0),
    "DiT, diffusers": Counted(diffusion_transformer, 5),  # 2 · 2 + 1
}


def found(network, example):
    """The norms of a network, and how many of which class are seen and not measured."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        sites = ng.find_norms(network, example)
    said = "".join(str(w.message) for w in warned if str(w.message).startswith("seen and not measured"))
    return sites, {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+),", said)}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_counts(package, model):
    network, example = model.make(package)
    sites, others = found(network, example)
    assert len(sites) == model.norms, [site.name for site in sites]
    assert others == (model.others or {})
    if not sites:
        return
    table = ng.Survey(network, ["uniform"], example_inputs=example).run([example], progress=False).table()
    counted = table.query("side == 'in'").groupby("positions").tokens
    assert counted.sum()["first"] == model.first, "a row of an image, a place or a head taken for the first position?"
    assert counted.min()["all"] > 0


def test_sentence_transformers(package, tmp_path):
    """Its batch is a mapping within a mapping, which is refused: the model within is surveyed."""
    theirs = package("sentence_transformers")
    modules = package("sentence_transformers.models")
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    transformers.BertModel(transformers.BertConfig(vocab_size=VOCABULARY, **sizes)).save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(VOCABULARY - 5))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab={w: i for i, w in enumerate(words)}).save_pretrained(tmp_path)
    reader = modules.Transformer(str(tmp_path))
    model = theirs.SentenceTransformer(modules=[reader, modules.Pooling(WIDTH)], device="cpu").eval()
    inner = reader.auto_model if hasattr(reader, "auto_model") else reader.model
    batch = dict(input_ids=IDS, attention_mask=torch.ones_like(IDS))
    assert len(ng.find_norms(model, {"input": batch})) == 5
    survey = ng.Survey(model, ["uniform"], example_inputs={"input": batch})
    with pytest.raises(ValueError, match=r"^batches: expected tensors, got a mapping as input"):
        survey.run([{"input": batch}], progress=False)
    assert ng.Survey(inner, ["uniform"]).run([batch], progress=False).tokens == IDS.numel()


def bridged(package, model):
    package("transformer_lens")
    sources = package("transformer_lens.model_bridge.sources")
    kind = type(model).__name__
    return sources.build_bridge_from_module(copy.deepcopy(model), kind, hf_config=model.config).eval()


def llama():
    sizes = dict(hidden_size=WIDTH, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes))


@pytest.mark.parametrize("make", [gpt2, llama])
def test_attribution_and_held_scales_take_what_the_tools_make(package, make):
    """A bridge of TransformerLens as it is, and the module that nnsight has wrapped."""
    model = make().eval()
    expected = ng.attribute(model, IDS, 5, 6, by="head")
    wrapped = package("nnsight").NNsight(copy.deepcopy(model))
    for other in (bridged(package, model), wrapped._module):
        table = ng.attribute(other, IDS, 5, 6, by="head")
        assert list(table.part)[2:] == list(expected.part)[2:]
        assert (table.iloc[:, 1:] - expected.iloc[:, 1:]).abs().max().max() < 1e-6
        with torch.no_grad():
            live, changed = (logits_of(other(ids)) for ids in (IDS, IDS.flip(0)))
            with ng.held_scales(other, IDS):
                assert (logits_of(other(IDS)) - live).abs().max() < 1e-5
                assert (logits_of(other(IDS.flip(0))) - changed).abs().max() > 1e-3


def test_a_language_model_of_nnsight(package):
    """It is no module; the module within it is."""
    nnsight, tokenizers = package("nnsight"), package("tokenizers")
    words = tokenizers.models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="0")
    reader = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words))
    model = nnsight.LanguageModel(gpt2(), tokenizer=reader)
    with pytest.raises(TypeError, match=r"^model: expected a torch\.nn\.Module, got a LanguageModel$"):
        ng.find_norms(model, IDS)
    assert len(ng.find_norms(model._module, IDS)) == 7
