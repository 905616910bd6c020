"""Models by name or folder, or an error that says what can be loaded."""

import pytest
import torch
from normgeom.models.loading import load_model
from tiny_models import tiny


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
