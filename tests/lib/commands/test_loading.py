"""Models by name or folder, or an error that says what can be loaded."""

import normgeom as ng
import pytest
import torch
from normgeom.commands.loading import load_config, load_model, load_to_survey, load_with_windows
from normgeom.commands.survey import TABLE, survey_model
from normgeom.surgery.converted import save_converted
from normgeom.text.corpora import load_corpus
from normgeom.training.twins import NORMS, save_twin, variants
from tiny_models import tiny, token_ids
from transformers import GPT2Config

OWN = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=256, n_positions=32, bos_token_id=None, eos_token_id=None)


def test_a_folder(tmp_path):
    model = tiny("gpt2")
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float64")
    assert not loaded.training
    assert loaded.dtype == torch.float64, "options are not passed on"
    assert torch.equal(loaded.wte.weight, model.transformer.wte.weight.double())


@pytest.mark.parametrize("name", ["gpt2", "nobody/no-such-model", "no/such/folder"])
def test_a_name_without_a_network_says_what_to_do(monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=rf"^model: '{name}' cannot be loaded, neither as a folder .* nor by name"):
        load_model(name)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(OSError, match=r"^model: .* cannot be loaded"):
        load_model(str(tmp_path))


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
        name, network, batches = load_to_survey(str(tmp_path / "my model"), corpus, 700)
    assert name == "my model", "the last part of the folder"
    assert torch.equal(network.wte.weight, model.transformer.wte.weight) and not network.training
    assert {batch.shape[1] for batch in batches} == {length}, "the model takes no longer windows"
    read = torch.cat([batch.flatten() for batch in batches]).tolist()
    assert read == list(corpus.text.encode())[: 700 // length * length], "whole windows of what was asked for"


def test_a_corpus_that_gives_fewer_tokens(tmp_path, corpus):
    variants(OWN, 3, ("layer",))["layer"].save_pretrained(tmp_path / "model")
    said = r"^tokens: 1100 asked, the corpus gives 992; name a larger one$"
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=said):
        load_to_survey(str(tmp_path / "model"), corpus, 1100)
