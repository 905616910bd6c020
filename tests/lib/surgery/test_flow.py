"""Surgery from behaviour alone, the table of names off and every weight drawn; what is refused, and in which words."""

import pytest
import torch
import transformers
from flow_models import MORE
from normgeom import RMSNorm, center_writers, find_norms, fold_norms, to_rms_norm
from normgeom.models import layouts
from normgeom.models.layouts import layout_of
from normgeom.surgery.double import double_throughout
from normgeom.surgery.flow import Seen, find_flow, seen_flow
from normgeom.surgery.streams import known_flow
from surgery_models import CONVERTIBLE, FOLDABLE, Untouched, name_of, uneven
from tiny_models import tiny
from torch import nn

BOUND = 1e-10  # of a logit in float64; logits here are of size 0.1 to 10
IDS = torch.randint(2, 64, (3, 13), generator=torch.Generator().manual_seed(0))
_KNOWN = ("falcon", "falcon_new", "stablelm", "olmo", "nemotron", "cohere", "cohere_qk")
FAMILIES = [*CONVERTIBLE, *((family, {}) for family in (*_KNOWN, *list(MORE)[:14]))]


class Encoder(nn.Module):
    """torch's own encoder between embeddings and a head."""

    def __init__(self, norm_first, activation="gelu", shared=False, skip=None):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            32, 4, 48, batch_first=True, norm_first=norm_first, activation=activation, dropout=0.0
        )
        self.words, self.places = nn.Embedding(64, 32), nn.Parameter(torch.randn(13, 32))
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head, self.skip = nn.Linear(32, 64), skip
        if shared:
            self.encoder.layers[1].linear1 = self.encoder.layers[0].linear1

    def forward(self, ids):
        x = self.words(ids) + self.places[: ids.shape[1]]
        return self.head(self.encoder(x if self.skip is None else self.skip(x)))


def drawn(family, **changes):
    """A float64 model, every parameter drawn, none of mean 0."""
    if family in MORE:
        model, config, settings = MORE[family]
        model = getattr(transformers, model)(getattr(transformers, config)(**settings | changes))
    else:
        model = Encoder(**changes) if family == "encoder" else tiny(family, **changes)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data.copy_(0.1 + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


def inputs_of(model):
    generator = torch.Generator().manual_seed(4)
    kind = getattr(model, "main_input_name", "input_ids")
    if kind == "pixel_values":
        return {kind: torch.randn(2, 3, 8, 8, generator=generator)}
    if kind == "input_features":
        return {kind: torch.randn(2, 8, 18, generator=generator), "decoder_input_ids": IDS[:2]}
    if not hasattr(model, "config"):
        return IDS
    return {kind: IDS, **({"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {})}


def answer(model):
    inputs = inputs_of(model)
    with double_throughout(), torch.no_grad():
        if not isinstance(inputs, dict):
            return model(inputs)
        wide = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
        return model(**wide).logits


@pytest.fixture
def no_table(monkeypatch):
    monkeypatch.setattr(layouts, "LAYOUTS", {})


def test_there_are_twenty_families():
    kinds = {drawn(family, **changes).config.model_type for family, changes in FAMILIES}
    assert len(kinds) >= 20, sorted(kinds)


@pytest.mark.parametrize(("family", "changes"), FAMILIES, ids=name_of)
def test_the_same_logits_without_the_table(family, changes, no_table):
    model = drawn(family, **changes)
    before = answer(model)
    assert before.std() > 0.01, "a model that says nothing shows nothing"
    assert to_rms_norm(model) is model
    assert float((answer(model) - before).abs().max()) <= BOUND
    stream = [module for module in model.modules() if isinstance(module, RMSNorm)]
    others = [name for name, module in model.named_modules() if "LayerNorm" in type(module).__name__ and name]
    assert len(stream) >= 3
    assert all(
        part in name for name in others for part in [next(p for p in ("q_", "k_", "head", "predictions") if p in name)]
    )


@pytest.mark.parametrize(("family", "changes"), CONVERTIBLE + FOLDABLE, ids=name_of)
def test_what_is_seen_is_what_the_table_says(family, changes):
    model = uneven(family, **changes)
    table, seen = known_flow(model, layout_of(model)), seen_flow(model).flow
    assert set(seen.writers) == set(table.writers) and not seen.added
    assert [norm.name for norm in seen.norms] == [norm.name for norm in table.norms]
    for mine, its in zip(seen.norms, table.norms, strict=True):
        assert set(mine.readers) == set(its.readers) and (mine.centred, mine.offset) == (its.centred, its.offset)
        assert not its.centred or mine.eps == its.eps


@pytest.mark.parametrize("surgery", [fold_norms, center_writers, to_rms_norm], ids=lambda surgery: surgery.__name__)
@pytest.mark.parametrize("family", ["falcon", "nemotron", "vit", "xlm_roberta_xl"])
def test_each_surgery(surgery, family):
    model = drawn(family)
    before = answer(model)
    surgery(model)
    assert float((answer(model) - before).abs().max()) <= BOUND


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_an_encoder_of_torch(activation):
    """Also as torch runs it without gradients, where its fast path reads LayerNorms past the modules."""
    model = drawn("encoder", norm_first=True, activation=activation)
    with torch.no_grad():
        before = model(IDS)
        to_rms_norm(model, example_inputs=IDS)
        assert float((model(IDS) - before).abs().max()) <= BOUND
    assert {site.kind for site in find_norms(model, IDS)} == {"rms"}


def test_the_model_decides_nothing_but_its_structure():
    """Weights of which the model's own run would show little: gains of 1, biases of 0, no mean anywhere."""
    model = tiny("falcon").double()
    assert len(seen_flow(model).flow.norms) == 3
    model.transformer.word_embeddings.weight.data.zero_()
    assert seen_flow(model).flow == seen_flow(drawn("falcon")).flow


REFUSED = {
    "bert": (dict(), r"attention\.output\.LayerNorm normalises the stream itself, .*\(post-norm\)"),
    "albert": (dict(), r"\(post-norm\)"),
    "bart": (dict(), r"\(post-norm\)"),
    "openai_gpt": (dict(), r"\(post-norm\)"),
    "opt": (dict(do_layer_norm_before=False), r"\(post-norm\)"),
    "encoder": (dict(norm_first=False), r"\(post-norm\)"),
    "bloom": (dict(), r"word_embeddings_layernorm normalises its embeddings, whose output, .* is the stream"),
    "rwkv": (dict(), r"pre_ln normalises its embeddings"),
    "modernbert_decoder": (dict(), r"embeddings\.norm normalises its embeddings"),
    "swin": (dict(), r"embeddings\.norm normalises its embeddings"),
    "llama": (
        dict(),
        r"norms of this LlamaForCausalLM are RMSNorm already, model\.layers\.0\.input_layernorm the first",
    ),
    "phi3": (dict(), "RMSNorm already"),
    "glm": (dict(), "RMSNorm already"),
    "gemma2": (dict(), r"post_attention_layernorm normalises what a block adds to the stream"),
    "mixtral": (dict(), "RMSNorm already"),
    "t5": (dict(), "RMSNorm already"),
    "xglm": (dict(), r"embed_positions\.weights is added to the stream, a table that its module computes anew"),
    "ctrl": (dict(), r"pos_encoding is added to the stream, a table that its module computes anew"),
    "whisper": (dict(), r"model\.encoder\.\S+ reads a sum, added in model\.encoder, of which a part is no plain sum"),
    "dinov2": (dict(), r"projection writes is added in dinov2\.encoder\.layer\.0 to what is no plain sum"),
    "clip": (dict(), r"this CLIPTextModelWithProjection returns the output of text_model\.final_layer_norm"),
    "phimoe": (
        dict(),
        r"post_attention_layernorm, a norm of the stream, is read by mm in \S+experts; its gain and bias",
    ),
    "pegasus, decoder": (dict(), r"encoder_attn\.k_proj, a Linear, has no place in what the example runs"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_refusal_says_its_true_reason(family, no_table):
    changes, reason = REFUSED[family]
    model = drawn(family, **changes)
    inputs = inputs_of(model)
    with Untouched(model), pytest.raises(ValueError, match=rf"^model: .*{reason}") as refused:
        to_rms_norm(model, example_inputs=inputs)
    assert "\n" not in str(refused.value)


def reading_the_stream(x):
    return x + x.var(-1, keepdim=True)


ODD = {
    "the mean is read": (
        dict(skip=reading_the_stream),
        r"what \S+ writes to the stream is read without a norm, by var in the model",
    ),
    "something is added": (
        dict(skip=lambda x: x + torch.ones(32).to(x)),
        r"what \S+ writes is added in the model to what is",
    ),
    "rows are shortened": (
        dict(skip=lambda x: x.flatten(0, 1).renorm(2, 0, 1.0).view_as(x)),
        r"without a norm, by renorm in the model",
    ),
    "an activation": (dict(skip=torch.relu), r"without a norm, by relu in the model"),
    "one map, two norms": (dict(shared=True), r"linear1 reads encoder\.layers\.0\.norm2 and encoder\.layers\.1\.norm2"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_else_touches_the_stream_is_named(case):
    changes, reason = ODD[case]
    model = drawn("encoder", norm_first=True, **changes)
    with Untouched(model), pytest.raises(ValueError, match=rf"^model: .*{reason}"):
        to_rms_norm(model, example_inputs=IDS)


def test_masks_scales_and_shapes_are_followed():
    def skip(x):
        seen = (torch.arange(13) < 9).to(x)[None, :, None]
        x = x - 0.3 * x
        return torch.cat([0.5 * (x * seen)[:, :7], x[:, 7:]], 1).transpose(0, 1).contiguous().transpose(0, 1)

    model = drawn("encoder", norm_first=True, skip=skip)
    before = answer(model)
    to_rms_norm(model, example_inputs=IDS)
    assert float((answer(model) - before).abs().max()) <= BOUND


class Crossed(nn.Module):
    """Attention whose keys and values are not its queries, and a number that is learned."""

    def __init__(self, named):
        super().__init__()
        self.words, self.norm, self.other = nn.Embedding(64, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.attention, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 64)
        self.scale, self.named = nn.Parameter(torch.tensor(0.5)), named

    def forward(self, ids):
        x = self.words(ids)
        queries, keys = self.norm(x), self.norm(x) if self.named is None else torch.tanh(x)
        inputs = dict(key=keys, value=keys) if self.named else {}
        x = x + self.attention(queries, *(() if self.named else (queries, queries)), **inputs, need_weights=False)[0]
        return self.scale * self.head(self.other(x))


def test_a_learned_number_is_no_part_of_the_stream():
    model = Crossed(None).double().eval()
    before = answer(model)
    to_rms_norm(model, example_inputs=IDS)
    assert float((answer(model) - before).abs().max()) <= BOUND


def test_keys_by_name_are_inputs_too():
    with pytest.raises(ValueError, match=r"^model: .* read by attention, a MultiheadAttention, beside another input"):
        to_rms_norm(Crossed(True).double(), example_inputs=IDS)


def test_a_change_that_is_not_exact_is_refused(monkeypatch):
    """A linear map that does more than its weight and bias say."""

    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.abs().sum(-1, keepdim=True)

    model = drawn("encoder", norm_first=True)
    head = model.head
    model.head = Odd(32, 64).double()
    model.head.load_state_dict(head.state_dict())
    with (
        Untouched(model),
        pytest.raises(ValueError, match=r"^model: a copy .* its output differs by \d.* of the largest"),
    ):
        to_rms_norm(model, example_inputs=IDS)


def test_what_runs_no_norm_or_has_no_example_is_refused():
    with pytest.raises(ValueError, match=r"^model: this Linear runs no LayerNorm or RMSNorm"):
        to_rms_norm(nn.Linear(3, 3), example_inputs=torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"^model: a Linear has no layout, .*example_inputs"):
        to_rms_norm(nn.Linear(3, 3))


def test_a_model_with_a_layout_is_not_run():
    assert not isinstance(find_flow(tiny("gpt2")), Seen), "a layout is known; a copy costs memory"
