"""Which rows of a norm's input a survey counts, and which batches it refuses, before any work."""

import normgeom as ng
import pytest
import torch
from norm_checks import draw
from normgeom.survey.directions import unit
from normgeom.survey.passes import _positions
from survey_truth import (
    KEYS,
    assert_rows_equal,
    assert_same_state,
    copied,
    directly,
    same_tables,
    stored,
    survey,
    table_of,
)
from tiny_models import VOCABULARY, tiny, token_ids
from torch import nn

TEXTS = [token_ids(1, n, seed=n)[0] for n in (9, 3, 1, 6)]
ANSWERS = [token_ids(1, n, seed=20 + n)[0] for n in (4, 7, 2, 3)]
MASKS = {
    "none": None,
    "left": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]),
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
    first, rest = _positions(token.shape, axis, None if mask is None else mask.bool())
    mask = torch.ones(3, 5) if mask is None else mask
    real = mask.flatten().nonzero().flatten().tolist()
    starts = [] if axis is None else [5 * i + row.tolist().index(1) for i, row in enumerate(mask) if row.any()]
    for row, t in enumerate(token.flatten().tolist()):
        assert first[row] == (t in starts), f"row {row} of token {t}: of padding, or of the wrong axis?"
        assert rest[row] == (t in real and t not in starts), f"row {row} of token {t}: padding, or a first position?"


@pytest.mark.parametrize(
    ("lead", "axis"),
    [((3, 4), 1), ((4, 5), 1), ((14,), None), ((3, 2, 4), 2), ((5, 3), 1)],
    ids=["another length", "other texts", "other rows", "per head", "axes swapped"],
)
def test_padding_that_the_input_does_not_show(lead, axis):
    assert _positions(torch.Size(lead), axis, MASKS["left"].bool()) is None


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
BOTH_SIDES = ("llama", "opt", "chameleon", "qwen3", "modernbert", "xlnet", "t5")
CASES = [(f, side) for f in BOTH_SIDES for side in ("left", "right")] + [(f, "right") for f in ("gpt2", "cohere_qk")]


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


def test_a_text_of_padding_alone_and_nan_on_padding_are_no_news(recwarn):
    model, (ids, mask) = tiny("llama").double(), padded(TEXTS[:2], "right")
    with_it, without = ng.Survey(model), survey(model, [dict(input_ids=ids, attention_mask=mask)])
    ids, mask = torch.cat([ids, ids[:1]]), torch.cat([mask, 0 * mask[:1]])

    def poison(module, args):
        return (args[0].where(mask.bool().unsqueeze(-1), torch.nan),)

    handle = model.model.norm.register_forward_pre_hook(poison)
    with_it.run([dict(input_ids=ids, attention_mask=mask)], progress=False)
    handle.remove()
    same_tables(with_it.table(), without.table())
    assert with_it.tokens == without.tokens == 12
    assert not with_it.excluded()[["nonfinite", "zero"]].to_numpy().any()
    assert not [w for w in recwarn if "left out" in str(w.message)]


HEADS = {
    "token before head": ("qwen3", {}, "model.layers.0.self_attn.q_norm", 1),
    "head before token": ("phi", dict(qk_layernorm=True), "model.layers.0.self_attn.q_layernorm", 2),
}


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(("family", "changes", "name", "axis"), HEADS.values(), ids=HEADS)
def test_heads_are_rows_of_their_own(family, changes, name, axis, padding):
    """Queries are normalised head by head: four vectors of 8 a token, the first token's four are first."""
    model, mask = tiny(family, **changes), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    mask = mask if padding else torch.ones_like(mask)
    batch = dict(input_ids=token_ids(2, 7), attention_mask=mask)
    table = table_of(model, [batch], directions=["random_a"])
    (pair,) = stored(model, [name], [batch])[name]
    first = mask.bool() & (mask.cumsum(-1) == 1)
    for side, v in zip(("in", "out"), pair, strict=True):
        v = v.movedim(axis, 1)
        for positions, keep in (("first", first), ("rest", mask.bool() & ~first), ("all", mask.bool())):
            expected = directly(v[keep].reshape(-1, 8), unit("random_a", 8, 0))
            assert_rows_equal(table.loc[name, side, "random_a", positions], expected, f"{name}, {side}, {positions}")


def test_tokens_are_no_heads_and_no_numbers():
    """Exaone 4 has no norm in front of the one of its queries; of vectors, rows count; of images, the first norm's."""
    assert survey(tiny("exaone4"), [token_ids(2, 7)], directions=["uniform"]).tokens == 14
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    for x, tokens in ((draw(2, 5, 8).float(), 10), (draw(4, 8).float(), 4)):
        assert survey(net, [x], example_inputs=x).tokens == tokens
    assert survey(tiny("swin"), [dict(pixel_values=torch.ones(3, 3, 8, 8))]).tokens == 48


@pytest.mark.parametrize("length", [4, 6])
def test_a_decoder_is_not_masked_by_its_encoders_padding(length):
    """Also where both happen to have one length."""
    mask = torch.tensor([[1, 1, 1, 0, 0, 0]])
    batch = dict(input_ids=token_ids(1, 6), attention_mask=mask, decoder_input_ids=token_ids(1, length))
    result = survey(tiny("t5"), [batch], directions=["uniform"])
    counted = result.table().query("side == 'in' and positions == 'all'").set_index("site")["tokens"]
    assert counted["encoder.final_layer_norm"] == result.tokens == 3
    assert counted["decoder.final_layer_norm"] == length, "the encoder's mask was applied"


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
    before, whole = copied(s), torch.ones(2, 6)
    partly = whole.clone()
    partly[1, 4:] = 0
    message = r"^batches: pairs: an input of shape \(2, 3, 8\) does not show which of its rows are padding"
    with pytest.raises(ValueError, match=message):
        s.run([dict(input_ids=ids, attention_mask=partly)], progress=False)
    assert_same_state(s, before)
    assert not any(m._forward_hooks for m in model.modules()), "a hook was left behind"
    table = s.run([dict(input_ids=ids, attention_mask=whole)], progress=False).table().set_index(KEYS)
    assert table.loc["pairs", "in", "uniform", "all"].tokens == 12, "without padding there is nothing to show"


IDS, TOO_LARGE = token_ids(2, 7), torch.tensor([[1, VOCABULARY]])
OUTSIDE = f"expected token ids from 0 to {VOCABULARY - 1}, got"
BAD = {
    "too large": (TOO_LARGE, ValueError, rf"{OUTSIDE} 1 to {VOCABULARY}; is the tokenizer another model's\?$"),
    "negative": (torch.tensor([[-1, 5]]), ValueError, f"{OUTSIDE} -1 to 5"),
    "in a mapping": (dict(input_ids=TOO_LARGE), ValueError, OUTSIDE),
    "of a decoder": (dict(input_ids=IDS, decoder_input_ids=TOO_LARGE), ValueError, OUTSIDE),
    "float": (IDS.float(), TypeError, r"expected integer token ids \(batch, length\), got torch.float32 of shape"),
    "one axis": (IDS[0], TypeError, r"expected integer token ids \(batch, length\), got torch.int64 of shape \(7,\)"),
    "a list": ([[1, 2]], TypeError, "expected token ids as a tensor, got list"),
    "a text": (dict(input_ids="The cat"), TypeError, "expected token ids as a tensor, got str"),
    "mask of four axes": (
        dict(input_ids=IDS, attention_mask=torch.ones(2, 1, 7, 7)),
        ValueError,
        r"expected attention_mask \(batch, length\), got shape \(2, 1, 7, 7\)$",
    ),
    "mask that is a list": (
        dict(input_ids=IDS, decoder_attention_mask=[[1] * 7] * 2),
        ValueError,
        r"expected decoder_attention_mask \(batch, length\), got shape \(\)$",
    ),
}


@pytest.mark.parametrize(("bad", "error", "message"), BAD.values(), ids=BAD)
def test_bad_batches_leave_the_state(bad, error, message):
    """The batch before the bad one counts, the one after it does not; a pilot is named as one."""
    model = tiny("gpt2")
    s, expected = ng.Survey(model), survey(model, [IDS])
    with pytest.raises(error, match=f"^batches: {message}"):
        s.run([IDS, bad, IDS], progress=False)
    assert_same_state(s, expected)
    with pytest.raises(error, match=f"^pilot: {message}"):
        ng.Survey(model.train(), ["matched_a"], pilot=bad)
    assert all(m.training and not m._forward_hooks for m in model.modules()), "the mode, or a hook"


def test_one_batch_that_is_in_no_list():
    for batches in (IDS, dict(input_ids=IDS)):
        with pytest.raises(TypeError, match=r"^batches: expected (integer )?token ids"):
            survey(tiny("gpt2"), batches)
