"""Models by name or folder, or an error that says what can be loaded."""

import json
import os
import shutil

import normgeom as ng
import pytest
import torch
from normgeom.commands.finding import find_commit
from normgeom.commands.loading import (
    load_config,
    load_model,
    load_to_survey,
    load_with_head,
    load_with_windows,
    most_tokens,
)
from normgeom.commands.survey import TABLE, survey_model
from normgeom.surgery.converted import save_converted
from normgeom.text.corpora import load_corpus
from normgeom.training.twins import NORMS, save_twin, variants
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, tiny, token_ids
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    GPT2Config,
    XLNetConfig,
)

OWN = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=256, n_positions=32, bos_token_id=None, eos_token_id=None)


def test_a_folder(tmp_path):
    model = tiny("gpt2")
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float64")
    assert not loaded.training
    assert loaded.dtype == torch.float64, "options are not passed on"
    assert torch.equal(loaded.wte.weight, model.transformer.wte.weight.double())


@pytest.mark.parametrize("name", ["gpt2", "nobody/no-such-model"])
def test_a_name_without_a_network_says_what_to_do(monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=rf"^model: '{name}' cannot be loaded .*a folder .* needs no network, or a name"):
        load_model(name)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(OSError, match=r"^model: .* cannot be loaded"):
        load_model(str(tmp_path))


# what is not whole


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A GPT-2 of two blocks, d = 32."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    tiny("gpt2", vocab_size=256).save_pretrained(folder)
    return folder


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


def pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save(Evil(), folder / "pytorch_model.bin")


def config(text=None, **changes):
    def damage(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}) if text is None else text)

    return damage


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


DAMAGE = {
    "truncated weights": cut,
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "half a configuration": config('{"model_type"'),
    "a configuration that is a list": config("[]"),
    "an unknown model_type": config(model_type="x"),
    "no heads": config(n_head=0),
    "a pickle that runs": pickled,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_is_a_line(saved, tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    broken = shutil.copytree(saved, tmp_path / "broken")
    DAMAGE[damage](broken)
    for load in (load_model, load_with_head):
        with pytest.raises(OSError, match=r"^model: '.*broken' cannot be loaded \(.+\); expected a folder") as caught:
            load(str(broken))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists(), "code of a pickle was run"


def changed(**changes):
    """Tensors in place of those of that name, or none."""

    def damage(folder):
        path = folder / "model.safetensors"
        state = {**load_file(path), **{name.replace("__", "."): value for name, value in changes.items()}}
        state = {name: value for name, value in state.items() if value is not None}
        save_file(state, path, metadata={"format": "pt"})

    return damage


AMISS = {
    "a missing gain": (changed(transformer__h__0__ln_1__weight=None), r"missing: (transformer\.)?h\.0\.ln_1\.weight\)"),
    "no weights": (lambda folder: save_file({}, folder / "model.safetensors", {"format": "pt"}), r"missing: .* more\)"),
    "one too many": (
        changed(transformer__h__0__ln_9__weight=torch.ones(3)),
        r"unexpected: transformer\.h\.0\.ln_9\.weight",
    ),
    "another shape": (
        changed(transformer__ln_f__weight=torch.ones(3)),
        r"of another shape: .*ln_f\.weight \(3,\), not \(32,\)",
    ),
    "a block more": (config(n_layer=3), r"missing: .* and 8 more"),
    "a block fewer": (config(n_layer=1), r"unexpected: transformer\.h\.1\..* and \d+ more"),
    "another width": (config(n_embd=64), r"of another shape: .*\(32,\), not \(64,\)"),
}


@pytest.mark.parametrize("damage", AMISS)
def test_weights_that_are_not_those_of_the_model_are_named(saved, tmp_path, damage):
    broken = shutil.copytree(saved, tmp_path / "broken")
    do, message = AMISS[damage]
    do(broken)
    for load in (load_model, load_with_head):
        with pytest.raises(
            ValueError, match=rf"^model: the weights of '.*broken' are not those .*{message}.*; save it"
        ):
            load(str(broken))
    with pytest.warns(UserWarning, match=rf"^weights of .*broken are amiss.* \(.*{message}"):
        load_model(str(broken), allow_missing=True)


def test_a_model_saved_with_another_head_is_whole(saved, tmp_path):
    """A head that is not asked for, one beside it, and one that is tied."""
    changed(v_head__weight=torch.ones(3))(shutil.copytree(saved, tmp_path / "model"))
    load_model(str(tmp_path / "model"))
    load_with_head(str(tmp_path / "model"))
    AutoModel.from_pretrained(saved).save_pretrained(tmp_path / "body")
    model = load_with_head(str(tmp_path / "body"))
    assert model.lm_head.weight is model.transformer.wte.weight, "an untied head would be drawn"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_is_whole(tmp_path, family):
    """With its head, and without."""
    model = tiny(family)
    for part in (model, model.base_model):
        part.save_pretrained(tmp_path / "model")
        load_model(str(tmp_path / "model"))


def test_masks_that_old_models_were_saved_with_are_not_missed(tmp_path):
    model = tiny("gpt_neo")
    mask = {
        "transformer.h.0.attn.attention.bias": torch.ones(1),
        "transformer.h.0.attn.attention.masked_bias": torch.ones(1),
    }
    model.save_pretrained(tmp_path, state_dict={**model.state_dict(), **mask})
    load_model(str(tmp_path))


def test_an_untied_head_that_is_missing_is_an_error(tmp_path):
    tiny("gpt_neox").base_model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"^model: .*missing: lm_head\.weight\)"):
        load_with_head(str(tmp_path))
    load_model(str(tmp_path))


def test_a_pooler_that_a_model_was_saved_without_is_not_missed(tmp_path):
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=256)
    BertForMaskedLM(BertConfig(**sizes)).save_pretrained(tmp_path)
    load_model(str(tmp_path))
    changed(bert__encoder__layer__0__output__LayerNorm__weight=None)(tmp_path)
    with pytest.raises(ValueError, match=r"missing: encoder\.layer\.0\.output\.LayerNorm\.weight\)"):
        load_model(str(tmp_path))


def test_code_of_a_model_is_not_run_and_nobody_is_asked(saved, tmp_path, monkeypatch):
    """Not where a pipe would say yes, either."""
    folder = shutil.copytree(saved, tmp_path / "model")
    config(model_type="x", auto_map={"AutoConfig": "x.C", "AutoModel": "x.M"})(folder)
    (folder / "x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    for load in (load_config, load_model, load_with_head):
        with pytest.raises(OSError, match=r"^model: .* cannot be loaded \("):
            load(str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(saved, tmp_path, value):
    """Also the last entry of a model that this package wrote."""
    model = AutoModelForCausalLM.from_pretrained(saved)
    model.transformer.wte.weight.data[-1, -1] = value
    model.save_pretrained(tmp_path / "model")
    own = variants(OWN, 3, ("rms",))["rms"]
    own.transformer.ln_f.weight.data[-1] = value
    save_twin(own, tmp_path / "twin")
    for name, weight in (("model", "wte"), ("twin", "transformer.ln_f")):
        with pytest.raises(ValueError, match=rf"^model: the weights of .*with NaN or Inf: {weight}\.weight\)"):
            load_model(str(tmp_path / name))
        with pytest.warns(UserWarning, match=rf"with NaN or Inf: {weight}\.weight"):
            load_model(str(tmp_path / name), allow_missing=True)


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "model").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("model", "loop"):
        with pytest.raises(OSError, match=r"^model: expected a folder as save_pretrained wrote it, .* is none"):
            find_commit(str(tmp_path / name))


@pytest.mark.parametrize(
    "name", ["", "./nope", "/no/such", "no/such/folder", "nope/", "a" * 300, "a/" * 3000, "b\udcff"]
)
def test_a_name_that_cannot_be_is_refused_in_one_line(name):
    with pytest.raises((OSError, ValueError), match=r"^model: [^\n]*$"):
        find_commit(name)


@pytest.mark.parametrize("norm", [*NORMS, "converted"])
def test_folders_that_normgeom_wrote(tmp_path, norm):
    if norm == "converted":
        model = ng.to_rms_norm(tiny("gpt2"))
        save_converted(model, tmp_path / "model", {})
    else:
        model = variants(OWN, 3, (norm,))[norm]
        save_twin(model, tmp_path / "model")
    folder = str(tmp_path / "model")
    loaded, config = load_model(folder), load_config(folder)
    assert not loaded.training and config.model_type == "gpt2" and config.vocab_size == model.config.vocab_size
    ids = token_ids(2, 8)
    with torch.no_grad():
        assert torch.equal(loaded(ids).last_hidden_state, model.base_model(ids).last_hidden_state), "another model"
    assert load_model(folder, dtype="float64").dtype == torch.float64
    assert load_model(folder, device_map={"": torch.device("cpu")}).device.type == "cpu"
    with torch.no_grad():
        assert torch.equal(load_with_head(folder)(ids).logits, model(ids).logits), "another head"


def test_a_device_map_that_would_spread_an_own_folder(tmp_path):
    save_twin(variants(OWN, 3, ("rms",))["rms"], tmp_path / "model")
    with pytest.raises(ValueError, match=r"^device_map: expected none for what normgeom wrote, got 'auto'"):
        load_model(str(tmp_path / "model"), device_map="auto")


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
def test_an_rms_norm_twin_is_surveyed_by_its_folder(tmp_path):
    import pandas as pd

    model = variants(OWN, 3, ("rms",))["rms"]
    save_twin(model, tmp_path / "model")
    survey_model(str(tmp_path / "model"), tmp_path / "out", tokens=256, corpus="stdlib", length=32, device="cpu")
    table = pd.read_parquet(tmp_path / "out" / TABLE)
    assert set(table.kind) == {"rms"} and set(table.site) == {site.name for site in ng.find_norms(model.base_model)}


def test_a_model_with_its_head_and_windows_of_a_text(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("the quick brown fox " * 10)
    model = variants(OWN, 3, ("layer",))["layer"].to(torch.bfloat16)
    save_twin(model, tmp_path / "model")
    with pytest.warns(UserWarning, match="has no tokenizer"):
        loaded, ids = load_with_windows(str(tmp_path / "model"), load_corpus(words), tokens=100, length=128)
    assert not loaded.training
    assert loaded.dtype == torch.float32, "as it was saved"
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.float()), "another head"
    expected = torch.tensor(list(words.read_bytes()[:96])).reshape(3, 32)
    assert torch.equal(ids, expected), "three windows of as many tokens as the model has positions"
    with pytest.warns(UserWarning):
        assert load_with_windows(str(tmp_path / "model"), load_corpus(words), 100, 20)[1].shape == (5, 20)


@pytest.mark.parametrize(
    ("config", "stated"),
    [(GPT2Config(n_positions=40), 40), (BloomConfig(), None), (XLNetConfig(), None)],
    ids=["gpt2", "bloom", "xlnet"],
)
def test_the_positions_that_a_configuration_states(config, stated):
    assert most_tokens(config) == stated


def test_a_text_shorter_than_a_window(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    save_twin(variants(OWN, 3, ("layer",))["layer"], tmp_path / "model")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="corpus: expected at least one window of 32"):
        load_with_windows(str(tmp_path / "model"), load_corpus(tmp_path / "short.txt"), 100, 32)


def test_windows_for_a_model_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match=r"^model: .* cannot be loaded"):
        load_with_windows(str(tmp_path), load_corpus("stdlib"), 100, 32)


@pytest.fixture
def corpus(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(48 + i % 70) for i in range(1000)), encoding="utf-8")
    return load_corpus(text)


@pytest.mark.parametrize(("positions", "length"), [(32, 32), (500, 128)])
def test_a_model_and_what_it_is_to_read(tmp_path, corpus, positions, length):
    config = GPT2Config(**{**OWN.to_dict(), "n_positions": positions})
    model = variants(config, 3, ("layer",))["layer"]
    model.save_pretrained(tmp_path / "my model")
    with pytest.warns(UserWarning, match="has no tokenizer"):
        networks, batches = load_to_survey(str(tmp_path / "my model"), corpus, 700)
    ((name, network),) = networks.items()
    assert name == "my model", "the last part of the folder"
    assert torch.equal(network.wte.weight, model.transformer.wte.weight) and not network.training
    assert {batch.shape[1] for batch in batches} == {length}, "the model takes no longer windows"
    read = torch.cat([batch.flatten() for batch in batches]).tolist()
    assert read == list(corpus.text.encode())[: 700 // length * length], "whole windows of what was asked for"


def test_the_twins_in_a_folder_of_training(tmp_path, corpus):
    pair = variants(OWN, 3, ("layer", "rms"))
    for norm, model in pair.items():
        save_twin(model, tmp_path / norm / "model")
    with pytest.warns(UserWarning, match="has no tokenizer"):
        networks, _ = load_to_survey(str(tmp_path), corpus, 700)
    assert list(networks) == ["LayerNorm twin", "RMSNorm twin"]
    for model, network in zip(pair.values(), networks.values(), strict=True):
        norms = type(network.ln_f), type(model.transformer.ln_f)
        assert norms[0] is norms[1] and torch.equal(network.wte.weight, model.transformer.wte.weight)


def test_a_corpus_that_gives_fewer_tokens(tmp_path, corpus):
    variants(OWN, 3, ("layer",))["layer"].save_pretrained(tmp_path / "model")
    said = r"^tokens: 1100 asked, the corpus gives 992; name a larger one$"
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=said):
        load_to_survey(str(tmp_path / "model"), corpus, 1100)
