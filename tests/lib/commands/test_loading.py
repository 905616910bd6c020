"""Models by name or folder, or an error that says what can be loaded."""

import normgeom as ng
import pytest
import torch
from normgeom.commands.loading import load_config, load_model, load_with_text
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


@pytest.fixture
def bytes_model(tmp_path):
    def make(**changes):
        model = tiny("gpt2", vocab_size=256, **changes)
        model.save_pretrained(tmp_path / "model")
        return model, str(tmp_path / "model")

    return make


def corpus_of(tmp_path, text):
    (tmp_path / "text.txt").write_text(text)
    return load_corpus(str(tmp_path / "text.txt"))


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
@pytest.mark.parametrize(("positions", "length"), [(64, 64), (512, 128)])
def test_a_model_with_its_head_and_text_as_it_reads_it(tmp_path, bytes_model, positions, length):
    model, folder = bytes_model(n_positions=positions)
    text = "".join(chr(97 + i % 23) for i in range(5000))
    loaded, batches = load_with_text(folder, corpus_of(tmp_path, text), tokens=2000)
    assert not loaded.training and torch.equal(loaded.lm_head.weight, model.lm_head.weight), "without its head"
    assert {batch.shape[1] for batch in batches} == {length}, "longer than the model or the default allows, or shorter"
    assert max(len(batch) for batch in batches) == 8
    read = torch.cat([batch.flatten() for batch in batches])
    wanted = torch.tensor(list(text.encode()))[: 2000 // length * length]
    assert torch.equal(read, wanted), "not the beginning of the text, or more of it than was asked"


@pytest.mark.filterwarnings("ignore:.*has no tokenizer")
def test_a_text_or_a_number_of_tokens_below_a_window_is_refused(tmp_path, bytes_model):
    _, folder = bytes_model()
    with pytest.raises(ValueError, match=r"^corpus: expected a window of 64 tokens, it has fewer"):
        load_with_text(folder, corpus_of(tmp_path, "x" * 63), tokens=2000)
    with pytest.raises(ValueError, match=r"^tokens: expected at least one window of 64, got 63"):
        load_with_text(folder, corpus_of(tmp_path, "x" * 500), tokens=63)


def test_a_model_with_text_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match=r"^model: .* cannot be loaded"):
        load_with_text(str(tmp_path), corpus_of(tmp_path, "x" * 500), tokens=128)
