"""Which rows of a norm's input stand first in a text, and which batches a survey refuses, before any work."""

import normgeom as ng
import pytest
import torch
from norm_checks import draw
from normgeom.survey.directions import unit
from normgeom.survey.survey import _members
from survey_truth import assert_rows_equal, assert_same_state, directly, stored, survey, table_of
from tiny_models import VOCABULARY, tiny, token_ids
from torch import nn

# how a norm's input lies, given the number of each token, (batch, length): the axis of positions, and the numbers
LAYOUTS = {
    "text, token": (1, lambda t: t),
    "token, text": (0, lambda t: t.T),
    "text, token, head": (1, lambda t: t[:, :, None].expand(3, 5, 2)),
    "text, head, token": (2, lambda t: t[:, None].expand(3, 2, 5)),
    "token, text, head": (0, lambda t: t.T[:, :, None].expand(5, 3, 4)),
    "flattened": (None, lambda t: t.flatten()),
}


@pytest.mark.parametrize(("axis", "lay"), LAYOUTS.values(), ids=LAYOUTS)
def test_rows_that_stand_first(axis, lay):
    """The numbers of the tokens, laid out as the input is, say which token each row belongs to."""
    token = lay(torch.arange(15).reshape(3, 5))
    first, rest = _members(token.shape, axis)
    assert first.tolist() == [axis is not None and t % 5 == 0 for t in token.flatten().tolist()]
    assert torch.equal(first + rest, torch.ones(token.numel()))


HEADS = {
    "token before head": ("qwen3", {}, "model.layers.0.self_attn.q_norm", 1),
    "head before token": ("phi", dict(qk_layernorm=True), "model.layers.0.self_attn.q_layernorm", 2),
}


@pytest.mark.parametrize(("family", "changes", "name", "axis"), HEADS.values(), ids=HEADS)
def test_heads_are_rows_of_their_own(family, changes, name, axis):
    """Queries are normalised head by head: four vectors of 8 a token, the first token's four are first."""
    model, batch = tiny(family, **changes), dict(input_ids=token_ids(2, 7), attention_mask=torch.ones(2, 7))
    table = table_of(model, [batch], directions=["random_a"])
    (pair,) = stored(model, [name], [batch])[name]
    for side, v in zip(("in", "out"), pair, strict=True):
        v = v.movedim(axis, 1)
        for positions, rows in (("first", v[:, :1]), ("rest", v[:, 1:]), ("all", v)):
            expected = directly(rows.reshape(-1, 8), unit("random_a", 8, 0))
            assert_rows_equal(table.loc[name, side, "random_a", positions], expected, f"{name}, {side}, {positions}")


def test_tokens_are_no_heads_and_no_numbers():
    """Exaone 4 has no norm in front of the one of its queries; of vectors, rows count; of images, the first norm's."""
    assert survey(tiny("exaone4"), [token_ids(2, 7)], directions=["uniform"]).tokens == 14
    every_other = token_ids(1, 14)[:, ::2]
    assert survey(tiny("gpt2"), [every_other], directions=["uniform"]).tokens == 7
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    for x, tokens in ((draw(2, 5, 8).float(), 10), (draw(4, 8).float(), 4)):
        assert survey(net, [x], example_inputs=x).tokens == tokens
    assert survey(tiny("swin"), [dict(pixel_values=torch.ones(3, 3, 8, 8))]).tokens == 48


IDS, TOO_LARGE = token_ids(2, 7), torch.tensor([[1, VOCABULARY]])
PADDED = "expected texts without padding,"
OUTSIDE = f"expected token ids from 0 to {VOCABULARY - 1}, got"
BAD = {
    "too large": (TOO_LARGE, ValueError, rf"{OUTSIDE} 1 to {VOCABULARY}; is the tokenizer another model's\?$"),
    "negative": (torch.tensor([[-1, 5]]), ValueError, f"{OUTSIDE} -1 to 5"),
    "in a mapping": (dict(input_ids=TOO_LARGE), ValueError, OUTSIDE),
    "float": (IDS.float(), TypeError, r"expected integer token ids \(batch, length\), got torch.float32 of shape"),
    "one axis": (IDS[0], TypeError, r"expected integer token ids \(batch, length\), got torch.int64 of shape \(7,\)"),
    "a list": ([[1, 2]], TypeError, r"expected integer token ids \(batch, length\), got list"),
    "padding": (dict(input_ids=IDS, attention_mask=torch.eye(2, 7)), ValueError, f"{PADDED} attention_mask leaves"),
    "a batch in a batch": ({"input": dict(input_ids=IDS)}, ValueError, "expected tensors, got a mapping as input"),
    "padding of a decoder": (
        dict(input_ids=IDS, decoder_attention_mask=torch.zeros(2, 3)),
        ValueError,
        f"{PADDED} decoder_attention_mask leaves",
    ),
}


@pytest.mark.parametrize(("bad", "error", "message"), BAD.values(), ids=BAD)
def test_bad_batches_leave_the_state(bad, error, message):
    """The batch before the bad one counts, the one after it does not."""
    model = tiny("gpt2")
    s, expected = ng.Survey(model), survey(model, [IDS])
    with pytest.raises(error, match=f"^batches: {message}"):
        s.run([IDS, bad, IDS], progress=False)
    assert_same_state(s, expected)
    assert not any(m._forward_hooks for m in model.modules()), "a hook was left behind"


def test_one_batch_that_is_in_no_list():
    for batches in (IDS, dict(input_ids=IDS)):
        with pytest.raises(TypeError, match=r"^batches: expected integer token ids"):
            survey(tiny("gpt2"), batches)
