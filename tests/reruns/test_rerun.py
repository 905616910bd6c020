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
SIZES = dict(vocab_size=256, bos_token_id=None, eos_token_id=None)
TRANSFORMER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
MODELS = {
    "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=64, **SIZES)),
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **TRANSFORMER, **SIZES)),
    "BERT": lambda: BertModel(BertConfig(max_position_embeddings=64, **TRANSFORMER, **SIZES)),
}
NORMS = {"GPT-2": 5, "Llama": 5, "BERT": 5}


def rerun(tmp_path, **parameters):
    out = tmp_path / "out.ipynb"
    papermill.execute_notebook(CHAPTER, out, parameters, kernel_name="python3", progress_bar=False, cwd=tmp_path)
    return nbformat.read(out, as_version=4)


def said(notebook):
    """What was printed, and tables as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    tables = [output.data["text/plain"] for output in outputs if "text/markdown" in output.get("data", {})]
    return "".join(output.text for output in outputs if output.get("name") == "stdout") + "\n".join(tables)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def folder_of(name, folder):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        MODELS[name]().save_pretrained(folder)
    return folder


# GPT-2's layout is that of the test below; one model of another kind is enough every time.
@pytest.mark.parametrize("name", ["Llama", pytest.param("BERT", marks=pytest.mark.slow)])
def test_a_model_in_a_folder(name, tmp_path):
    """A folder named twins is not passed over for the chapter's small pairs."""
    folder_of(name, tmp_path / "twins")
    text = said(rerun(tmp_path, model="./twins", **SMALL))
    assert_measured(text, name)
    assert "claim-layer-avoids: reported, not asserted" in text, "a claim must not be asserted on another model"


def test_a_model_with_its_own_tokenizer_and_a_text(tmp_path):
    folder = folder_of("GPT-2", tmp_path / "words")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the norm of the vector is the norm"], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the norm of the vector is the norm\n" * 600, encoding="utf-8")
    text = said(rerun(tmp_path, model=str(folder), corpus=str(corpus), **SMALL))
    assert "text: corpus.txt" in text
    assert_measured(text, "GPT-2")


def assert_measured(text, name):
    measured = [line for line in text.splitlines() if re.match(r"\S*(norm|Norm|ln_)\S*( +\d+[.]\d+){3}$", line)]
    assert len(measured) == NORMS[name], f"{name}: expected {NORMS[name]} norms in the survey's table, got {measured}"


def first_cells(chapter):
    """The parameters of a chapter and the cell after them, which checks them."""
    code = [cell for cell in chapter.cells if cell.cell_type == "code"]
    at = next(i for i, cell in enumerate(code) if "parameters" in cell.metadata.get("tags", []))
    return code[at], code[at + 1]


def test_a_bad_parameter_stops_in_the_first_cell(tmp_path):
    with pytest.raises(PapermillExecutionError, match="parameter tokens: expected a value in"):
        rerun(tmp_path, tokens="many")
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    failed = [cell for cell in executed.cells for out in cell.get("outputs", []) if out.output_type == "error"]
    assert len(failed) == 1 and "check_parameters" in failed[0].source, "the first cell must be the one that fails"


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        (dict(tokens=-5), ValueError, "parameter tokens: expected a value in"),
        (dict(model=7), ValueError, "parameter model: expected str, got 7"),
        (
            dict(corpus="no-file.txt"),
            FileNotFoundError,
            "corpus: expected 'stdlib' .* or a text file, got 'no-file.txt'",
        ),
    ],
)
def test_what_the_first_cell_says(parameters, error, message):
    given, check = first_cells(nbformat.read(CHAPTER, as_version=4))
    names = {}
    exec(given.source, names)
    names |= parameters
    with pytest.raises(error, match=message):
        exec(check.source, names)
