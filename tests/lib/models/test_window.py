"""How many tokens a model takes, asked of its architecture, against what the model does with its weights."""

import pytest
import tiny_models
import torch
import transformers
from normgeom.models.window import longest_window
from tiny_models import tiny, token_ids
from transformers import AutoModel

TEXTS = [
    family
    for family, (_, _, settings) in tiny_models._FAMILIES.items()
    if "vocab_size" in settings and family not in ("whisper", "rwkv")  # one hears, the other runs token by token
]


def config(family, **changes):
    _, name, settings = tiny_models._FAMILIES[family]
    return getattr(transformers, name)(**{**settings, **changes})


def takes(model, length):
    ids = token_ids(1, length)
    two = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(input_ids=ids, **two)
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("family", TEXTS)
def test_what_is_taken_runs(family):
    model = tiny(family)
    most = longest_window(model.config, 100)
    assert takes(model, most), f"{family} does not take {most} tokens"
    stated = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    assert most == 100 or most == stated or not takes(model, most + 1), f"{family} takes more than {most} tokens"


CUT = {
    # a key of its own: a bias of that length
    "mpt": (dict(max_seq_len=128), 128),
    "gpt2": (dict(n_positions=40), 40),
    # positions are counted from 2, in a table that is longer by 2
    "opt": (dict(max_position_embeddings=40), 40),
    # positions are counted from behind that of padding, in a table that is not longer
    "roberta": (dict(max_position_embeddings=40, pad_token_id=1), 38),
    # rotary: what is stated, though it runs beyond
    "llama": (dict(max_position_embeddings=40), 40),
    # distances in bins, or decay with distance: no end
    "t5": ({}, 300),
    "bloom": ({}, 300),
    "mamba": ({}, 300),
}


@pytest.mark.parametrize(("family", "changes", "expected"), [(f, *rest) for f, rest in CUT.items()], ids=CUT)
def test_where_windows_end(family, changes, expected):
    assert longest_window(config(family, **changes), 300) == expected


@pytest.mark.parametrize("wanted", [1, 7, 8, 9, 127, 128])
def test_no_more_than_is_wanted(wanted):
    assert longest_window(config("mpt", max_seq_len=128), wanted) == wanted


def test_a_large_model_is_asked_without_its_weights():
    """A hundred thousand million weights, of which none is made."""
    large = dict(hidden_size=16384, num_hidden_layers=30, num_attention_heads=128, intermediate_size=65536)
    assert longest_window(config("gpt_neox", **large, max_position_embeddings=2048), 512) == 512


def test_the_configuration_is_left_as_it_was():
    given = config("mpt")
    before = given.to_dict()
    longest_window(given, 100)
    assert given.to_dict() == before


def test_a_model_that_cannot_be_asked(monkeypatch):
    """What its configuration states decides."""

    class Deaf(torch.nn.Module):
        config = config("gpt2")

    monkeypatch.setattr(AutoModel, "from_config", lambda *_, **__: Deaf())
    assert longest_window(config("gpt2", n_positions=40), 100) == 40
