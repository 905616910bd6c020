"""Chapter 7 rerun by papermill on models in local folders, as a reader would, and with bad parameters."""

import re

import nbformat
import papermill
import pytest
import torch
from papermill.exceptions import PapermillExecutionError
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

CHAPTER = "notebooks/07-inference.ipynb"
SMALL = dict(tokens=1500, directions=4)
SIZES = dict(vocab_size=300, bos_token_id=None, eos_token_id=None)
TRANSFORMER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
MODELS = {
    "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=64, **SIZES)),
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **TRANSFORMER, **SIZES)),
    "BERT": lambda: BertModel(BertConfig(max_position_embeddings=64, **TRANSFORMER, **SIZES)),
}
NORMS = {"GPT-2": 5, "Llama": 5, "BERT": 5}


def rerun(tmp_path, **parameters):
    out = tmp_path / "out.ipynb"
    papermill.execute_notebook(CHAPTER, out, parameters, kernel_name="python3", progress_bar=False)
    return nbformat.read(out, as_version=4)


def stdout(notebook):
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_a_folder(name, tmp_path):
    folder = tmp_path / name.lower()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        MODELS[name]().save_pretrained(folder)
    text = stdout(rerun(tmp_path, model=str(folder), **SMALL))
    table = [line for line in text.splitlines() if re.match(r" *\S+ +(layer|rms) ", line)]
    kind = "rms" if name == "Llama" else "layer"
    measured = [line for line in table if "d = " not in line]
    assert len(measured) == NORMS[name], f"{name}: expected {NORMS[name]} norms in the survey's table, got {measured}"
    assert all(f" {kind} " in line for line in measured)
    assert "claim-layer-avoids: reported, not asserted" in text, "a claim must not be asserted on another model"


def test_the_model_s_own_tokenizer_is_used(tmp_path):
    folder = tmp_path / "words"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the norm of the vector is the norm"], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    MODELS["GPT-2"]().save_pretrained(folder)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the norm of the vector is the norm\n" * 600, encoding="utf-8")
    text = stdout(rerun(tmp_path, model=str(folder), corpus=str(corpus), **SMALL))
    assert "text: corpus.txt" in text


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (dict(tokens="many"), "parameter tokens: expected a value in"),
        (dict(tokens=-5), "parameter tokens: expected a value in"),
        (dict(model=7), "parameter model: expected str, got 7"),
        (dict(corpus="no-such-file.txt"), "corpus: expected 'stdlib' .* or a text file, got 'no-such-file.txt'"),
    ],
)
def test_a_bad_parameter_stops_in_the_first_cell(parameters, message, tmp_path):
    with pytest.raises(PapermillExecutionError, match=message):
        rerun(tmp_path, **parameters)
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    after = [cell for cell in cells if cell.cell_type == "code" and "check_parameters" in cell.source]
    failed = [cell for cell in cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert failed == after[:1], "the first cell after the parameters must be the one that fails"


def test_a_model_by_name_without_a_network(tmp_path):
    with pytest.raises(
        PapermillExecutionError, match=r"model: 'gpt2' cannot be loaded, neither as a folder .* nor by name"
    ):
        rerun(tmp_path, model="gpt2", **SMALL)
