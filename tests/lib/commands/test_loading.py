"""Models by name or folder: whole, or an error in a line that names what is wrong."""

import json
import os
import shutil

import pytest
import torch
from normgeom.commands.loading import described, load_model, most_tokens
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, tiny
from transformers import AutoModel, BertConfig, BertForMaskedLM, BloomConfig, GPT2Config

OWN = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=256, n_positions=32, bos_token_id=None, eos_token_id=None)


def load_with_head(name, **options):
    return load_model(name, head=True, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A GPT-2 of two blocks, d = 32."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    tiny("gpt2", vocab_size=256).save_pretrained(folder)
    return folder


def test_a_folder(tmp_path):
    model = tiny("gpt2")
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float64")
    assert not loaded.training and loaded.dtype == torch.float64
    assert torch.equal(loaded.wte.weight, model.transformer.wte.weight.double())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_is_whole(tmp_path, family):
    """With its head, and without."""
    model = tiny(family)
    for part in (model, model.base_model):
        part.save_pretrained(tmp_path / "model")
        load_model(str(tmp_path / "model"))


# what cannot be loaded


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


def coded(folder):
    """A model of its own code: nobody is asked whether to run it, nor where a pipe would say yes."""
    config(model_type="x", auto_map={"AutoConfig": "x.C", "AutoModel": "x.M"})(folder)
    (folder / "x.py").write_text("open('ran', 'w')")


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


DAMAGE = {
    "truncated weights": cut,
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "no configuration": lambda folder: (folder / "config.json").unlink(),
    "an unknown model_type": config(model_type="x"),
    "another width": config(n_embd=64),
    "a pickle that runs": pickled,
    "code that runs": coded,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_cannot_be_loaded(saved, tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    shutil.rmtree(tmp_path / "broken", ignore_errors=True)
    DAMAGE[damage](shutil.copytree(saved, tmp_path / "broken"))
    for load in (load_model, load_with_head):
        with pytest.raises(OSError, match=r"^model: 'broken' cannot be loaded \(\w+: ") as caught:
            load("broken")
        assert len(str(caught.value)) < 400
    assert not (tmp_path / "ran").exists(), "code of the folder was run"


# whose weights are not right


def changed(**changes):
    """Tensors in place of those of that name, or none."""

    def damage(folder):
        path = folder / "model.safetensors"
        state = {**load_file(path), **{name.replace("__", "."): value for name, value in changes.items()}}
        state = {name: value for name, value in state.items() if value is not None}
        save_file(state, path, metadata={"format": "pt"})

    return damage


WRONG = {
    "a gain": (
        changed(transformer__h__0__ln_1__weight=None),
        r"wrong weights, 1 in all: .*h\.0\.ln_1\.weight \(missing\)",
    ),
    "none": (lambda folder: save_file({}, folder / "model.safetensors", {"format": "pt"}), r"\(missing\)"),
    "one too many": (changed(transformer__h__0__ln_9__weight=torch.ones(3)), r"h\.0\.ln_9\.weight \(unexpected\)"),
    "a block more": (config(n_layer=3), r"wrong weights, 12 in all: .*h\.2\.attn\.c_attn\.bias \(missing\)"),
    "a block fewer": (config(n_layer=1), r"wrong weights, 11 in all: .*h\.1\.attn\.c_attn\.weight \(unexpected\)"),
    "NaN": (
        changed(transformer__wte__weight=torch.full((256, 32), float("nan"))),
        r"wrong weights, 1 in all: .*wte\.weight \(NaN or Inf\)",
    ),
    "Inf, one": (changed(transformer__wpe__weight=torch.eye(64, 32) / 0), r"wpe\.weight \(NaN or Inf\)"),
}


@pytest.mark.parametrize("damage", WRONG)
def test_wrong_weights_are_named(saved, tmp_path, damage):
    broken = shutil.copytree(saved, tmp_path / "broken")
    do, message = WRONG[damage]
    do(broken)
    for load in (load_model, load_with_head):
        with pytest.raises(ValueError, match=rf"^model: .*{message}"):
            load(str(broken))


def test_an_untied_head_that_is_missing_is_named(tmp_path):
    tiny("gpt_neox").base_model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"^model: .* has wrong weights, 1 in all: lm_head\.weight \(missing\)"):
        load_with_head(str(tmp_path))
    load_model(str(tmp_path))


def test_what_is_not_missed(saved, tmp_path):
    """Another head, one that is tied, a pooler, and masks that old models were saved with."""
    changed(v_head__weight=torch.ones(3))(shutil.copytree(saved, tmp_path / "model"))
    load_model(str(tmp_path / "model"))
    load_with_head(str(tmp_path / "model"))
    AutoModel.from_pretrained(saved).save_pretrained(tmp_path / "body")
    model = load_with_head(str(tmp_path / "body"))
    assert model.lm_head.weight is model.transformer.wte.weight, "an untied head would be drawn"
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=256)
    BertForMaskedLM(BertConfig(**sizes)).save_pretrained(tmp_path / "bert")
    load_model(str(tmp_path / "bert"))
    model = tiny("gpt_neo")
    masks = {f"transformer.h.0.attn.attention.{name}": torch.ones(1) for name in ("bias", "masked_bias")}
    model.save_pretrained(tmp_path / "neo", state_dict={**model.state_dict(), **masks})
    load_model(str(tmp_path / "neo"))


# by their names


def test_a_folder_is_described_by_its_name_and_its_files(saved, tmp_path):
    same = shutil.copytree(saved, tmp_path / "model")
    assert described(str(same)) == described(str(saved)) and described(str(saved))["name"] == "model"
    changed(transformer__wpe__weight=torch.ones(64, 32))(same)
    assert described(str(same))["sha256"] != described(str(saved))["sha256"]


def test_a_model_of_the_hub_is_described_by_its_commit(saved, tmp_path, monkeypatch):
    """Out of the hub's cache, as after a download."""
    commit, cached = "0123456789" * 4, tmp_path / "models--org--tiny"
    shutil.copytree(saved, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert described("org/tiny") == dict(name="org/tiny", commit=commit)


@pytest.mark.parametrize(
    ("config", "most"), [(GPT2Config(n_positions=40), 40), (GPT2Config(n_positions=400), 100), (BloomConfig(), 100)]
)
def test_the_positions_that_a_configuration_states(config, most):
    assert most_tokens(config, 100) == most
