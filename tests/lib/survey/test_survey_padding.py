"""Which rows of a norm's input a survey counts: texts of different lengths against the same texts one by one."""

import normgeom as ng
import pytest
import torch
from norm_checks import draw
from normgeom.survey.tally import rows
from survey_truth import (
    KEYS,
    assert_rows_equal,
    assert_same_state,
    direction,
    directly,
    frozen,
    same_tables,
    stored,
    survey,
    table_of,
)
from tiny_models import tiny, token_ids
from torch import nn

TEXTS = [token_ids(1, n, seed=n)[0] for n in (9, 3, 1, 6)]
ANSWERS = [token_ids(1, n, seed=20 + n)[0] for n in (4, 7, 2, 3)]
MASKS = {
    "none": torch.ones(3, 5),
    "left": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]),
    "right": torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]),
    "holes": torch.tensor([[0, 1, 0, 1, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 0]]),
    "a text of padding": torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]),
}
# how a norm's input lies, given the number of each token, (batch, length): the axis of positions, and the numbers
LAYOUTS = {
    "text, token": (1, lambda t: t),
    "token, text": (0, lambda t: t.T),
    "text, token, head": (1, lambda t: t[:, :, None].expand(3, 5, 2)),
    "text, head, token": (2, lambda t: t[:, None].expand(3, 2, 5)),
    "text, as many heads as tokens, token": (2, lambda t: t[:, None].expand(3, 5, 5)),
    "token, text, head": (0, lambda t: t.T[:, :, None].expand(5, 3, 4)),
    "flattened": (None, lambda t: t.flatten()),
    "flattened, head": (None, lambda t: t.flatten()[:, None].expand(15, 2)),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(("axis", "lay"), LAYOUTS.values(), ids=LAYOUTS)
def test_rows_that_count(axis, lay, mask):
    """The numbers of the tokens, laid out as the input is, say which token each row belongs to."""
    token = lay(torch.arange(15).reshape(3, 5))
    first, rest = (set(map(int, part)) for part in rows(token.shape, axis, mask.bool()))
    real = mask.flatten().nonzero().flatten().tolist()
    starts = [] if axis is None else [5 * i + row.tolist().index(1) for i, row in enumerate(mask) if row.any()]
    expected = {i for i, t in enumerate(token.flatten().tolist()) if t in starts}
    assert first == expected, "first positions: of padding, or of the wrong axis?"
    expected = {i for i, t in enumerate(token.flatten().tolist()) if t in real and t not in starts}
    assert rest == expected, "the rest: padding, or a first position?"


@pytest.mark.parametrize(("axis", "lay"), LAYOUTS.values(), ids=LAYOUTS)
def test_every_row_counts_without_a_mask(axis, lay):
    token = lay(torch.arange(15).reshape(3, 5))
    for mask in (None, torch.ones(3, 8, dtype=torch.bool)):  # images, or a decoder of another length
        first, rest = rows(token.shape, axis, mask)
        expected = [] if axis is None else [i for i, t in enumerate(token.flatten().tolist()) if t % 5 == 0]
        assert first.tolist() == expected, "first positions"
        assert sorted([*first.tolist(), *rest.tolist()]) == list(range(token.numel())), "a row left out, or twice"


@pytest.mark.parametrize(
    ("lead", "axis", "shape"),
    [((3, 4), 1, "3, 4"), ((4, 5), 1, "4, 5"), ((14,), None, "14"), ((3, 2, 4), 2, "3, 2, 4"), ((5, 3), 1, "5, 3")],
    ids=["another length", "other texts", "other rows", "per head", "axes swapped"],
)
def test_padding_that_the_input_does_not_show(lead, axis, shape):
    with pytest.raises(
        ValueError, match=rf"^an input of shape \({shape}, d\) does not show which of its rows are padd"
    ):
        rows(torch.Size(lead), axis, MASKS["left"].bool())


def padded(texts, side):
    """Token ids, padded with 1, and their mask."""
    longest = max(map(len, texts))
    ids, mask = torch.ones(len(texts), longest, dtype=torch.int64), torch.zeros(len(texts), longest, dtype=torch.int64)
    for i, text in enumerate(texts):
        place = slice(longest - len(text), longest) if side == "left" else slice(0, len(text))
        ids[i, place], mask[i, place] = text, 1
    return ids, mask


def with_answers(batch, ids, mask):
    return dict(batch, decoder_input_ids=ids, decoder_attention_mask=mask)


# where absolute positions are not counted from the mask, padding on the left moves the text
BOTH_SIDES = ("llama", "opt", "chameleon", "qwen3", "exaone4", "modernbert", "xlnet", "t5")
RIGHT_ONLY = ("gpt2", "bert", "bart", "cohere_qk")
CASES = [(f, side) for f in BOTH_SIDES for side in ("left", "right")] + [(f, "right") for f in RIGHT_ONLY]


@pytest.mark.parametrize(("family", "side"), CASES)
def test_padding_is_not_measured(family, side):
    """Texts of four lengths, padded to one: the same table as one by one, and their first tokens are first."""
    model = tiny(family).double()
    ids, mask = padded(TEXTS, side)
    batch = dict(input_ids=ids, attention_mask=mask)
    singly = [dict(input_ids=t[None], attention_mask=torch.ones(1, len(t))) for t in TEXTS]
    if model.config.is_encoder_decoder:
        batch = with_answers(batch, *padded(ANSWERS, "right"))
        singly = [with_answers(b, t[None], torch.ones(1, len(t))) for b, t in zip(singly, ANSWERS, strict=True)]
    together, one_by_one = survey(model, [batch]), survey(model, singly)
    assert together.tokens == one_by_one.tokens == 19, "heads or padding taken for tokens?"
    # positions that are rotated differently in norms that compute in float32 leave its rounding
    tol = 1e-6 if side == "left" else 1e-9
    same_tables(together.table(), one_by_one.table(), tol, quantiles=0.25)


@pytest.mark.parametrize("family", ["gpt2", "opt", "chameleon", "xlnet", "qwen3", "t5"])
def test_a_mask_of_ones_changes_nothing(family):
    model, ids = tiny(family), token_ids(3, 7)
    two = dict(decoder_input_ids=token_ids(3, 5)) if family == "t5" else {}
    plain = survey(model, [dict(input_ids=ids, **two)])
    ones = {f"{stream}attention_mask": torch.ones(3, n) for stream, n in (("", 7), ("decoder_", 5))[: 1 + len(two)]}
    masked = survey(model, [dict(input_ids=ids, **two, **ones)])
    same_tables(masked.table(), plain.table(), tol=1e-4, quantiles=0.25)
    assert masked.tokens == plain.tokens == 21
    if not two:
        bare = survey(model, [ids])
        same_tables(bare.table(), plain.table(), tol=0, quantiles=0)
        assert bare.digest == plain.digest, "token ids are the same, named or not"


def test_a_text_of_padding_alone(recwarn):
    model, (ids, mask) = tiny("llama").double(), padded(TEXTS[:2], "right")
    nothing = dict(
        input_ids=torch.cat([ids, torch.ones(1, 9, dtype=torch.int64)]),
        attention_mask=torch.cat([mask, torch.zeros(1, 9, dtype=torch.int64)]),
    )
    with_it, without = survey(model, [nothing]), survey(model, [dict(input_ids=ids, attention_mask=mask)])
    same_tables(with_it.table(), without.table())
    assert with_it.tokens == without.tokens == 12
    assert not with_it.excluded()[["nonfinite", "zero"]].to_numpy().any() and not len(recwarn), "padding is no news"
    alone = survey(model, [{name: value[2:] for name, value in nothing.items()}])
    assert (alone.tokens, alone.batches) == (0, 1) and set(alone.table().tokens) == {0}


HEADS = {
    "token before head": ("qwen3", {}, "model.layers.0.self_attn.q_norm", 1),
    "head before token": ("phi", dict(qk_layernorm=True), "model.layers.0.self_attn.q_layernorm", 2),
}


@pytest.mark.parametrize(("family", "changes", "name", "axis"), HEADS.values(), ids=HEADS)
def test_heads_are_rows_of_their_own(family, changes, name, axis):
    """Queries are normalised head by head: four vectors of 8 a token, the first token's four are first."""
    model, ids = tiny(family, **changes), token_ids(3, 7)
    table = table_of(model, [ids], directions=["random_a"])
    (pair,) = stored(model, [name], [ids])[name]
    for side, v in zip(("in", "out"), pair, strict=True):
        v = v.movedim(axis, 1)
        for positions, of in (("first", v[:, :1]), ("rest", v[:, 1:]), ("all", v)):
            expected = directly(of.reshape(-1, 8), direction("random_a", 8, 0))
            got = table.loc[name, side, "random_a", positions]
            assert_rows_equal(got, expected, 1e-9, f"{name}, {side}, {positions}")


@pytest.mark.parametrize(("family", "changes", "name", "axis"), HEADS.values(), ids=HEADS)
def test_padding_counts_for_no_head(family, changes, name, axis):
    """Not the number of vectors alone: the vectors that stay."""
    model, mask = tiny(family, **changes), torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]])
    batch = dict(input_ids=token_ids(2, 7), attention_mask=mask)
    table = table_of(model, [batch], directions=["random_a"])
    (pair,) = stored(model, [name], [batch])[name]
    for side, v in zip(("in", "out"), pair, strict=True):
        of_real = v.movedim(axis, 1)[mask.bool()].reshape(-1, 8)
        expected = directly(of_real, direction("random_a", 8, 0))
        assert_rows_equal(table.loc[name, side, "random_a", "all"], expected, 1e-9, f"{name}, {side}")
        assert table.loc[name, side, "random_a", "first"].tokens == 8


def test_tokens_are_no_heads():
    """Exaone 4 has no norm in front of the one of its queries."""
    result = ng.Survey(tiny("exaone4"), ["uniform"])
    assert result.sites[0]["dim"] == 8, "the first norm is that of a head"
    assert result.run([token_ids(2, 7)], progress=False).tokens == 14


def test_tokens_count_positions_not_numbers():
    """Inputs that are vectors: two rows of five positions are ten tokens, not eighty; four bare vectors are four."""
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    for x, tokens in ((draw(2, 5, 8).float(), 10), (draw(4, 8).float(), 4)):
        assert survey(net, [x], example_inputs=x).tokens == tokens


def test_tokens_of_images_are_those_of_the_first_norm():
    """Swin merges four patches into one on its way."""
    result = survey(tiny("swin"), [dict(pixel_values=torch.ones(3, 3, 8, 8))])
    counted = result.table().query("side == 'in' and positions == 'all' and direction == 'uniform'").tokens.tolist()
    assert (counted[0], counted[-1]) == (48, 12)
    assert result.tokens == 48


def test_a_decoder_is_not_masked_by_its_encoders_padding():
    """Also where both happen to have one length."""
    model, ids = tiny("t5"), token_ids(1, 6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0]])
    for length in (4, 6):
        batch = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=token_ids(1, length))
        result = survey(model, [batch], directions=["uniform"])
        counted = result.table().query("side == 'in' and positions == 'all'").set_index("site")["tokens"]
        assert counted["encoder.final_layer_norm"] == result.tokens == 3
        assert counted["decoder.final_layer_norm"] == length, f"decoder of {length}: the encoder's mask was applied"


class Pooling(nn.Module):
    """Its second norm sees pairs of tokens; ``forward`` takes what a tokenizer gives."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 8)
        self.each, self.pairs = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, input_ids, attention_mask=None):
        x = self.each(self.embedding(input_ids))
        return self.pairs(x.unflatten(1, (-1, 2)).sum(2))


def test_padding_that_a_norm_does_not_show_is_refused():
    """With the name of the norm, and with nothing counted, not even at the norms before it."""
    model, ids = Pooling(), token_ids(2, 6)
    s = ng.Survey(model, example_inputs=dict(input_ids=ids)).run([dict(input_ids=ids)], progress=False)
    before = frozen(s)
    whole = torch.ones(2, 6)
    partly = whole.clone()
    partly[1, 4:] = 0
    with pytest.raises(ValueError, match=r"^batches: pairs: an input of shape \(2, 3, d\) does not show which of its"):
        s.run([dict(input_ids=ids, attention_mask=partly)], progress=False)
    assert_same_state(s, before)
    assert not any(m._forward_hooks for m in model.modules()), "a hook was left behind"
    table = s.run([dict(input_ids=ids, attention_mask=whole)], progress=False).table().set_index(KEYS)
    assert table.loc["pairs", "in", "uniform", "all"].tokens == 12, "without padding there is nothing to show"
    assert table.loc["pairs", "in", "uniform", "first"].tokens == 4


@pytest.mark.parametrize("stream", ["", "decoder_"])
@pytest.mark.parametrize(
    "mask",
    [torch.ones(2, 1, 7, 7), torch.ones(7), [[1] * 7] * 2],
    ids=["four axes", "one axis", "a list"],
)
def test_masks_of_another_kind_are_refused(stream, mask):
    model, ids = tiny("t5"), token_ids(2, 7)
    s = survey(model, [dict(input_ids=ids, decoder_input_ids=ids)])
    before = frozen(s)
    shape = str(tuple(getattr(mask, "shape", ()))).replace("(", r"\(").replace(")", r"\)")
    message = rf"^batches: expected {stream}attention_mask \(batch, length\), got shape {shape}$"
    with pytest.raises(ValueError, match=message):
        s.run([{"input_ids": ids, "decoder_input_ids": ids, f"{stream}attention_mask": mask}], progress=False)
    assert_same_state(s, before)


@pytest.mark.parametrize("name", ["src_key_padding_mask", "pixel_mask", "pixel_attention_mask"])
def test_padding_that_another_mask_marks_is_refused(name):
    """It would be measured."""
    model, ids = tiny("gpt2"), token_ids(2, 7)
    message = rf"^batches: {name} marks padding; only what an attention_mask marks is left out$"
    with pytest.raises(ValueError, match=message):
        survey(model, [{"input_ids": ids, name: torch.arange(7).expand(2, 7) > 4}])


def test_a_mapping_within_a_batch_is_refused():
    """Its padding would be measured."""
    ids = token_ids(2, 7)
    message = r"^batches: expected tensors, got a mapping as features; survey the part it is for$"
    with pytest.raises(ValueError, match=message):
        survey(tiny("gpt2"), [dict(features=dict(input_ids=ids, attention_mask=ids > 7))])


def test_nan_on_padding_is_no_news(recwarn):
    model = tiny("gpt2")
    result = ng.Survey(model)

    def poisoned(module, args):
        x = args[0].clone()
        x[0, -1] = torch.nan
        return (x,)

    model.transformer.ln_f.register_forward_pre_hook(poisoned)
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[0, -1] = 0
    result.run([dict(input_ids=token_ids(2, 5), attention_mask=mask)], progress=False)
    assert not result.excluded()[["nonfinite", "zero"]].to_numpy().any()
    assert not [w for w in recwarn if "left out" in str(w.message)]
