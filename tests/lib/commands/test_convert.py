"""`normgeom convert`: what it writes is the model, in a new process too, or nothing; nobody takes it for another."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import normgeom as ng
import pytest
import torch
import transformers
from click.testing import CliRunner
from flow_models import MORE as FLOW_FAMILIES
from normgeom.cli import main
from normgeom.commands import convert
from normgeom.commands.convert import convert_model
from normgeom.jobs import digest
from normgeom.surgery.converted import save_converted
from normgeom.text.corpora import load_corpus
from safetensors.torch import load_file, save_file
from surgery_models import CONVERTIBLE, IDS, logits, name_of, uneven
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GPT2LMHeadModel

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(ng.__file__).parents[1]), "TQDM_DISABLE": "1"}
# loads every folder in a folder, in a process of its own
LOAD = """
import sys, torch, normgeom as ng
from pathlib import Path
torch.set_num_threads(int(sys.argv[2]))
ids = torch.load(Path(sys.argv[1]) / "ids.pt")
state = torch.random.get_rng_state()
with torch.no_grad():
    folders = [folder for folder in Path(sys.argv[1]).iterdir() if folder.is_dir()]
    found = {folder.name: ng.load_converted(folder)(ids).logits for folder in folders}
assert torch.equal(torch.random.get_rng_state(), state), "loading drew random numbers"
torch.save(found, Path(sys.argv[1]) / "logits.pt")
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A model without a tokenizer."""
    folder = tmp_path_factory.mktemp("given") / "tiny"
    uneven("gpt2", dtype=torch.float32, vocab_size=256).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def written(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("parent") / "of" / "out"
    return out, convert_model(str(source), out)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# what is written


def test_what_is_loaded_is_the_converted_model(source, written):
    out, found = written
    expected = ng.to_rms_norm(AutoModelForCausalLM.from_pretrained(source).eval())
    loaded = ng.load_converted(out)
    assert isinstance(loaded, GPT2LMHeadModel) and not loaded.training
    assert torch.equal(logits(loaded), logits(expected))
    assert {site.kind for site in ng.find_norms(loaded)} == {"rms"}
    assert loaded.lm_head.bias is not None and loaded.lm_head.weight is not loaded.transformer.wte.weight
    names = ["config.json", "converted.safetensors", "generation_config.json", "provenance.json"]
    assert sorted(contents(out)) == names
    text = (out / "provenance.json").read_text("utf-8") + (out / "config.json").read_text("utf-8")
    noted = json.loads((out / "provenance.json").read_text("utf-8"))
    assert noted == found and noted["model"] == dict(name="tiny", sha256=digest(source)) and noted["tokens"] == 128
    assert str(out.parent) not in text and "/tiny" not in text, "a path of this machine"


def test_the_same_logits_in_a_new_process(tmp_path):
    """Each converted family, in the dtypes that a model is saved in, bit for bit."""
    torch.save(IDS, tmp_path / "ids.pt")
    dtypes, here = [torch.float32, torch.bfloat16, torch.float64], {}
    cases = [(case, dtypes[0]) for case in CONVERTIBLE]
    cases += [((family, {}), dtype) for family in ("gpt2", "gptj", "gpt_neox", "opt", "mpt") for dtype in dtypes[1:]]
    for (family, changes), dtype in cases:
        name = f"{family}-{name_of(changes)}-{dtype}"
        uneven(family, torch.float32, **changes).save_pretrained(tmp_path / "plain")
        # as from_pretrained makes it in its dtype, buffers and all
        model = ng.to_rms_norm(AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=dtype).eval())
        shutil.rmtree(tmp_path / "plain")
        save_converted(model, tmp_path / name)
        with torch.no_grad():
            here[name] = model(IDS).logits
    command = [sys.executable, "-c", LOAD, str(tmp_path), str(torch.get_num_threads())]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = torch.load(tmp_path / "logits.pt")
    assert here.keys() == there.keys() and len(here) == len(CONVERTIBLE) + 10
    for name, expected in here.items():
        assert there[name].dtype == expected.dtype and torch.equal(there[name], expected), f"{name}: not bit for bit"


def test_the_tokenizer_and_what_is_set_for_generation_come_along(source, given, tmp_path):
    worded = shutil.copytree(source, tmp_path / "worded")
    shutil.copytree(given / "words", worded, dirs_exist_ok=True)
    GenerationConfig(max_new_tokens=7, do_sample=False, pad_token_id=3).save_pretrained(worded)
    convert_model(str(worded), tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("γ ⊙ n")["input_ids"] == [2, 3, 4]
    assert ng.load_converted(tmp_path / "out").generate(IDS[:, :2]).shape == (3, 9)


def test_an_empty_folder_is_taken_by_a_link(source, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    convert_model(str(source), tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and contents(tmp_path / "there") == contents(tmp_path / "link") != {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


@pytest.mark.parametrize("family", ["megatron_bert", "opt_projected"])
def test_weights_that_are_still_tied_are_written_and_loaded(tmp_path, family):
    """The bias of a head that BERT's kind holds twice, the embedding of OPT-350m that its head reads."""
    name, kind, settings = FLOW_FAMILIES[family]
    name = name.replace("MaskedLM", "CausalLM")
    plain = getattr(transformers, name)(getattr(transformers, kind)(**settings, is_decoder=True))
    plain.save_pretrained(tmp_path / "plain")
    model = ng.to_rms_norm(AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval())
    save_converted(model, tmp_path / "out")
    assert torch.equal(logits(ng.load_converted(tmp_path / "out")), logits(model))


def test_a_finished_folder_is_found(source, written):
    """The same command again does no work; another model's folder is refused."""
    out, note = written
    before = contents(out)
    assert convert_model(str(source), out) == note and contents(out) == before
    with pytest.raises(ValueError, match=r"^out: expected a new or empty folder"):
        convert_model(str(shutil.copytree(source, source.with_name("other"))), out)
    damaged = shutil.copytree(out, out.with_name("damaged"))
    (damaged / "converted.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"^folder: expected one that normgeom wrote"):
        convert_model(str(source), damaged)


# nobody takes it for another


def test_transformers_alone_refuses_it(written, tmp_path):
    """Though its name be that of a family, and its class be named."""
    copied = shutil.copytree(written[0], tmp_path / "gpt2")
    with pytest.raises(ValueError, match=r"type `.*, to be loaded by normgeom\.load_converted` but Transformers "):
        AutoModelForCausalLM.from_pretrained(copied)
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        GPT2LMHeadModel.from_pretrained(copied)


# what load_converted takes


def cut(folder, name, left):
    (folder / name).write_bytes((folder / name).read_bytes()[:left])


def other(folder, **entries):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))


def narrower(folder):
    settings = json.loads((folder / "config.json").read_text())["converted"]
    other(folder, converted={**settings, "n_embd": 16})


def exchanged(folder):
    """One weight too few, and another too many."""
    state = load_file(folder / "converted.safetensors")
    del state["lm_head.bias"]
    save_file({**state, "transformer.ln_f.bias": torch.zeros(32)}, folder / "converted.safetensors")


DAMAGE = {
    "no configuration": (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
    "half a configuration": (lambda folder: cut(folder, "config.json", 500), r"is not \("),
    "half of the weights": (lambda folder: cut(folder, "converted.safetensors", 90_000), r"is not \("),
    "a plain model": (lambda folder: other(folder, model_type="gpt2"), "its model_type is 'gpt2', not"),
    "another size": (narrower, "size mismatch"),
    "other weights": (exchanged, r"Missing key.*lm_head\.bias.*Unexpected key.*transformer\.ln_f\.bias"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_whole_is_not_loaded(written, tmp_path, damage):
    broken = shutil.copytree(written[0], tmp_path / "broken")
    do, message = DAMAGE[damage]
    do(broken)
    with pytest.raises(ValueError, match=rf"(?s)^folder: expected one that normgeom wrote, but .*{message}"):
        ng.load_converted(broken)


# all or nothing


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (Path, "write_bytes", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "file")),
        (Path, "write_text", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "file")),
        (GenerationConfig, "save_pretrained", KeyboardInterrupt()),
    ],
)
def test_a_full_disk_or_an_interrupt_leaves_nothing(source, tmp_path, monkeypatch, owner, name, error):
    def fail(*_, **__):
        raise error

    (tmp_path / "out.part").mkdir()  # as a killed run leaves it
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(type(error), match=r"No space left on device|^$"):
        convert_model(str(source), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*RoPE")
@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("llama", r"^model: expected LayerNorms .*, a LlamaRMSNorm"),
        ("bloom", r"^model: transformer\.word_embeddings_layernorm normalises what stays"),
        ("gemma2", r"^model: model\.layers\.0\.post_attention_layernorm normalises what stays"),
    ],
)
def test_a_model_that_cannot_be_converted(tmp_path, family, message):
    uneven(family, dtype=torch.float32, vocab_size=256).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        convert_model(str(tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_proof_is_on_text(source, tmp_path, monkeypatch):
    seen = []

    def prove(model, ids):
        seen.append(bytes(ids.flatten().tolist()))
        raise ValueError("model: no")

    monkeypatch.setattr(convert, "to_rms_norm", prove)
    with pytest.raises(ValueError, match=r"^model: no$"):
        convert_model(str(source), tmp_path / "out")
    assert seen == [load_corpus("stdlib").text.encode()[:128]] and not (tmp_path / "out").exists()


# the command, and what it is told


def test_the_command(source, tmp_path):
    result = CliRunner().invoke(main, ["convert", str(source), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    agrees = "on 128 tokens in float64, the logits agree to 1e-10 of the largest"
    assert result.stdout == f"Saved in {out}: {agrees}\n"
