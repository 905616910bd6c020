"""`normgeom convert`: what it writes is the model, in a new process too, or nothing; nobody takes it for another."""

import copy
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import normgeom as ng
import pandas as pd
import pytest
import torch
import transformers
from click.testing import CliRunner
from flow_models import MORE as FLOW_FAMILIES
from normgeom.cli import main
from normgeom.commands import convert
from normgeom.commands.convert import agreement, convert_model
from normgeom.jobs.folders import held
from normgeom.surgery import converted
from normgeom.surgery.converted import save_converted
from normgeom.text.tokens import windows
from safetensors import safe_open
from surgery_models import CONVERTIBLE, IDS, Untouched, apart, logits, name_of, uneven
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GPT2LMHeadModel,
    GPT2Model,
    PreTrainedTokenizerFast,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer")
TEXT = "".join(f"{i}: γ ⊙ n + β, as it was said\n" for i in range(100))
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
def folder(tmp_path_factory):
    """A model without a tokenizer, and a text."""
    folder = tmp_path_factory.mktemp("given")
    uneven("gpt2", dtype=torch.float32, vocab_size=256).save_pretrained(folder / "tiny")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """The command's work, with what a test changes."""

    def call(out, **changes):
        given = dict(model=str(folder / "tiny"), out=str(out), corpus=str(folder / "text.txt"), tokens=200)
        return convert_model(**given | changes)

    return call


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("parent") / "of" / "out"
    return out, run(out)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def environment():
    library = str(Path(ng.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": library, "TQDM_DISABLE": "1"}


# what is written


def test_what_is_found_is_what_there_is(folder, written):
    """Against the conversion done here, on the same bytes."""
    _, found = written
    batches = windows(torch.tensor(list(TEXT.encode()))[:200], 64, 1)
    model = AutoModelForCausalLM.from_pretrained(folder / "tiny").eval()
    exact = AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.float64).eval()
    before = [logits(exact, batch) for batch in batches]

    def furthest(model):
        return max(apart(logits(model, batch), x) for batch, x in zip(batches, before, strict=True))

    assert found.tokens == 192 == sum(batch.numel() for batch in batches)
    assert found.unconverted == furthest(model) > 1e-8
    assert found.converted == furthest(ng.to_rms_norm(model)) <= 3 * found.unconverted
    assert found.exact == furthest(ng.to_rms_norm(exact)) <= 1e-12
    assert found.largest == max(float(x.abs().max()) for x in before)
    assert found.dtype == "float32"


def test_what_is_loaded_is_the_converted_model(folder, written):
    out, _ = written
    expected = ng.to_rms_norm(AutoModelForCausalLM.from_pretrained(folder / "tiny").eval())
    loaded = ng.load_converted(out)
    assert isinstance(loaded, GPT2LMHeadModel) and not loaded.training
    assert torch.equal(logits(loaded), logits(expected))
    assert {site.kind for site in ng.find_norms(loaded)} == {"rms"}
    assert loaded.lm_head.bias is not None and loaded.lm_head.weight is not loaded.transformer.wte.weight


def test_the_folder_says_where_it_is_from(written):
    out, found = written
    assert sorted(contents(out)) == ["config.json", "converted.safetensors", "generation_config.json"]
    stated = json.loads((out / "config.json").read_text("utf-8"))
    assert stated["model_type"] == "normgeom-rms-norm, to be loaded by normgeom.load_converted"
    about = stated["about"]
    assert about["model"] == dict(name="tiny", revision=None, commit=None)
    assert about["corpus"]["name"] == "text.txt" and len(about["corpus"]["sha256"]) == 64
    assert about["agreement"]["exact"] == found.exact and about["versions"]["torch"] == metadata.version("torch")
    assert str(out.parent) not in json.dumps(stated) and "/tiny" not in json.dumps(stated), "a path of this machine"
    with safe_open(out / "converted.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.fixture(scope="module")
def in_a_new_process(tmp_path_factory):
    """Logits of each converted family here, and in a process that loads what was saved."""
    folder, here = tmp_path_factory.mktemp("converted"), {}
    torch.save(IDS, folder / "ids.pt")
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    cases = [(case, dtypes[0]) for case in CONVERTIBLE]
    cases += [((family, {}), dtype) for family in ("gpt2", "gptj", "gpt_neox", "opt", "mpt") for dtype in dtypes[1:]]
    for (family, changes), dtype in cases:
        name = f"{family}-{name_of(changes)}-{dtype}"
        model = uneven(family, torch.float32, **changes)
        # as from_pretrained makes it in its dtype, buffers and all
        model.save_pretrained(folder / "plain")
        model = ng.to_rms_norm(AutoModelForCausalLM.from_pretrained(folder / "plain", dtype=dtype).eval())
        shutil.rmtree(folder / "plain")
        save_converted(model, folder / name, {})
        with torch.no_grad():
            here[name] = model(IDS).logits
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), str(torch.get_num_threads())],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return here, torch.load(folder / "logits.pt")


def test_the_same_logits_in_a_new_process(in_a_new_process):
    here, there = in_a_new_process
    assert here.keys() == there.keys() and len(here) == len(CONVERTIBLE) + 10
    for name, expected in here.items():
        assert there[name].dtype == expected.dtype, name
        assert torch.equal(there[name], expected), f"{name}: not bit for bit"


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_another_dtype(run, tmp_path, dtype):
    found = run(tmp_path / "out", dtype=dtype)
    assert found.dtype == dtype and found.exact <= 1e-12
    assert (found.converted <= 1e-12) == (dtype == "float64")
    loaded = ng.load_converted(tmp_path / "out")
    assert {parameter.dtype for parameter in loaded.parameters()} == {getattr(torch, dtype)}


def test_the_tokenizer_and_what_is_set_for_generation_come_along(folder, run, tmp_path):
    source = shutil.copytree(folder / "tiny", tmp_path / "worded")
    words = {
        word: i for i, word in enumerate(["?", ":", "γ", "⊙", "n", "+", "β", ",", "as", "it", "was", "said", "<e>"])
    }
    tokenizer = Tokenizer(WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", eos_token="<e>").save_pretrained(source)
    GenerationConfig(max_new_tokens=7, do_sample=False, pad_token_id=3).save_pretrained(source)
    assert run(tmp_path / "out", model=str(source)).tokens == 192
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again("γ ⊙ n + β")["input_ids"] == [2, 3, 4, 5, 6] and again.eos_token == "<e>"
    assert ng.load_converted(tmp_path / "out").generate(IDS[:, :2]).shape == (3, 9)


def test_an_empty_folder_is_taken(run, tmp_path):
    (tmp_path / "out").mkdir()
    run(tmp_path / "out")
    ng.load_converted(tmp_path / "out")


def test_a_link_to_an_empty_folder_is_taken(run, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    run(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and sorted(contents(tmp_path / "there")) == sorted(
        contents(tmp_path / "link")
    )
    ng.load_converted(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_the_current_folder_is_taken(run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run(".")
    ng.load_converted(tmp_path / "here")


# nobody takes it for another


@pytest.mark.parametrize("name", ["out", "gpt2", "llama"])
@pytest.mark.parametrize("kind", [AutoModel, AutoModelForCausalLM, AutoConfig])
def test_transformers_alone_refuses_it(written, tmp_path, name, kind):
    copied = shutil.copytree(written[0], tmp_path / name)
    with pytest.raises(
        ValueError, match=r"model type `.*, to be loaded by normgeom\.load_converted` but Transformers "
    ):
        kind.from_pretrained(copied)


@pytest.mark.parametrize("family", ["falcon", "stablelm", "cohere", "nemotron", "olmo"])
def test_a_family_is_written_and_loaded(run, tmp_path, family):
    uneven(family, dtype=torch.float32, vocab_size=256).save_pretrained(tmp_path / family)
    assert run(tmp_path / "out", model=str(tmp_path / family)).exact <= 1e-10
    loaded = ng.load_converted(tmp_path / "out")
    before = logits(AutoModelForCausalLM.from_pretrained(tmp_path / family).eval())
    assert apart(logits(loaded), before) <= 1e-4 * float(before.abs().max())
    assert "rms" in {site.kind for site in ng.find_norms(loaded)}


@pytest.mark.parametrize("family", ["megatron_bert", "opt_projected"])
def test_weights_that_are_still_tied_are_written_and_loaded(tmp_path, family):
    """The bias of a head that BERT's kind holds twice, the embedding of OPT-350m that its head reads."""
    name, kind, settings = FLOW_FAMILIES[family]
    name = name.replace("MaskedLM", "CausalLM")
    plain = getattr(transformers, name)(getattr(transformers, kind)(**settings, is_decoder=True))
    plain.save_pretrained(tmp_path / "plain")
    model = ng.to_rms_norm(AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval())
    save_converted(model, tmp_path / "out", {})
    assert torch.equal(logits(ng.load_converted(tmp_path / "out")), logits(model))


@pytest.mark.parametrize("kind", [GPT2LMHeadModel, GPT2Model])
def test_a_class_that_is_named_finds_no_weights(written, kind):
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        kind.from_pretrained(written[0])


def test_a_survey_of_it_reads_rms_norms(written, folder, tmp_path):
    arguments = ["--model", str(written[0]), "--out", str(tmp_path / "a"), "--corpus", str(folder / "text.txt")]
    result = CliRunner().invoke(main, ["survey", *arguments, "--device", "cpu", "--length", "16"])
    assert result.exit_code == 0, result.output
    assert set(pd.read_parquet(tmp_path / "a" / "table.parquet").kind) == {"rms"}


# what load_converted takes


def drop(folder, name):
    (folder / name).unlink()


def cut(folder, name, left):
    (folder / name).write_bytes((folder / name).read_bytes()[:left])


def other(folder, **entries):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))


DAMAGE = {
    "no configuration": (lambda folder: drop(folder, "config.json"), r"config\.json"),
    "half a configuration": (lambda folder: cut(folder, "config.json", 500), "is not that"),
    "no weights": (lambda folder: drop(folder, "converted.safetensors"), r"converted\.safetensors"),
    "half of the weights": (lambda folder: cut(folder, "converted.safetensors", 90_000), "is not that"),
    "a plain model": (lambda folder: other(folder, model_type="gpt2"), "its model_type is 'gpt2', not"),
    "nothing of the model": (lambda folder: other(folder, converted={}), "model_type"),
    "another size": (
        lambda folder: other(
            folder, converted={**json.loads((folder / "config.json").read_text())["converted"], "n_embd": 16}
        ),
        "size mismatch",
    ),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "is not that"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_whole_is_not_loaded(written, tmp_path, damage):
    broken = shutil.copytree(written[0], tmp_path / "broken")
    do, message = DAMAGE[damage]
    do(broken)
    with pytest.raises(ValueError, match=rf"(?s)^folder: expected what normgeom convert wrote, .*{message}"):
        ng.load_converted(broken)


def test_a_weight_that_is_missing_or_too_many_is_an_error(written, tmp_path):
    broken = shutil.copytree(written[0], tmp_path / "broken")
    state = converted.load_file(broken / "converted.safetensors")
    del state["lm_head.bias"]
    converted.save_file({**state, "transformer.ln_f.bias": torch.zeros(32)}, broken / "converted.safetensors")
    with pytest.raises(ValueError, match=r"^folder: .*missing or too many: lm_head\.bias, transformer\.ln_f\.bias"):
        ng.load_converted(broken)


def test_a_folder_of_save_pretrained_is_refused(folder):
    with pytest.raises(ValueError, match=r"^folder: .* \(its model_type is 'gpt2', not 'normgeom-rms-norm, .*'\)$"):
        ng.load_converted(folder / "tiny")


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^folder: expected one that normgeom convert wrote, .* is no folder"):
        ng.load_converted(tmp_path / "none")


# all or nothing


def test_a_folder_that_holds_something_is_left_alone(run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("work before the refusal")
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"^out: expected a new or empty folder, .* holds something; name another"):
        run(tmp_path / "out")
    with pytest.raises(NotADirectoryError, match=r"^out: expected a folder or a new name, .*file is no folder"):
        run(tmp_path / "file")
    assert contents(tmp_path) == {"out/mine.txt": b"mine", "file": b"mine"}


def test_a_folder_that_another_is_filling_is_refused_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "read_config", lambda *_: pytest.fail("work before the refusal"))
    with (
        held(tmp_path / "out", tmp_path / ".out.lock"),
        pytest.raises(BlockingIOError, match=r"^out: .*out is in use by another run; wait until it has ended"),
    ):
        run(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["", "link"])
def test_an_out_that_is_no_folder_is_refused_before_any_work(run, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(convert, "read_config", lambda *_: pytest.fail("work before the refusal"))
    Path("link").symlink_to("nowhere")
    with pytest.raises((ValueError, OSError), match=r"^out: expected .* folder"):
        run(out)


def test_what_is_converted_is_not_converted_again(written, run, tmp_path):
    """It says so, and advises no other version of transformers."""
    with pytest.raises(ValueError, match=r"^model: .* is converted already, and normgeom\.load_converted loads it$"):
        run(tmp_path / "out", model=str(written[0]))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("work before the refusal")
    )
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"^out: expected a folder or a new name, .*file is no folder"):
        run(tmp_path / "file" / "deep" / "out")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"^out: .* cannot be made or written to: .* may not be changed"):
        run(tmp_path / "out")
    assert contents(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize(
    ("module", "name"), [(converted, "save_file"), (GenerationConfig, "save_pretrained"), (Path, "write_text")]
)
@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk_leaves_nothing(run, tmp_path, monkeypatch, module, name, exists):
    if exists:
        (tmp_path / "out").mkdir()

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "file")

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(OSError, match=r"^out: .*out cannot be written \(.*No space left on device.*; nothing is left"):
        run(tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out"] * exists


def test_an_interrupt_leaves_nothing(run, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(GenerationConfig, "save_pretrained", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_disk_that_is_really_full(folder, tmp_path):
    """A limit on the size of a file, which safetensors meets while it writes."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    arguments = ["convert", str(folder / "tiny"), str(tmp_path / "out"), "--corpus", str(folder / "text.txt")]
    done = subprocess.run(
        [sys.executable, "-m", "normgeom.cli", *arguments],
        env={**environment(), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limit,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert f"Error: out: {tmp_path / 'out'} cannot be written (" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_kill_leaves_nothing_that_is_taken(folder, run, tmp_path):
    """Killed when the weights are written and the configuration is not."""
    killed = (
        "import os, signal\n"
        "from transformers import GenerationConfig\n"
        "from normgeom.commands.convert import convert_model\n"
        "GenerationConfig.save_pretrained = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"convert_model({str(folder / 'tiny')!r}, {str(tmp_path / 'out')!r}, corpus={str(folder / 'text.txt')!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", killed], env=environment(), capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "out").exists()
    (left,) = tmp_path.glob(".out-*/out")
    assert (left / "converted.safetensors").exists(), "killed too early to show anything"
    with pytest.raises(ValueError, match=r"^folder: expected what normgeom convert wrote"):
        ng.load_converted(left)
    run(tmp_path / "out")
    assert not (tmp_path / ".out.lock").exists(), "the lock of the killed run is left"


def test_a_model_that_says_something_else_is_not_written(run, tmp_path, monkeypatch):
    right = convert.to_rms_norm
    monkeypatch.setattr(
        convert,
        "to_rms_norm",
        lambda model, **settings: ng.drop_mean_subtraction(model) if not settings else right(model, **settings),
    )
    with pytest.raises(ValueError, match=r"^bound: expected logits to differ by at most 1e-10, got \d"):
        run(tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.part").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"^model: the weights of .*with NaN or Inf: transformer\.wte\.weight"),
        (0.0, r"^model: expected logits to compare on this text, the largest is 0\.0"),
    ],
)
def test_a_model_that_says_nothing_is_not_written(run, tmp_path, value, message):
    model = uneven("gpt2", dtype=torch.float32, vocab_size=256)
    model.transformer.wte.weight.data.fill_(value)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "out", model=str(tmp_path / "model"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_bound_is_the_bound(run, tmp_path):
    with pytest.raises(ValueError, match=r"^bound: expected logits to differ by at most 1e-20, got \d\.\de-1\d$"):
        run(tmp_path / "out", bound=1e-20)
    assert not (tmp_path / "out").exists()
    assert run(tmp_path / "out", bound=1e-11).exact <= 1e-11


# float64 throughout


def test_what_counts_as_exact_is_float64_throughout(run, tmp_path):
    """A GPT-J of float64 weights has an error of its own: its attention is float32."""
    uneven("gptj", dtype=torch.float32, vocab_size=256).save_pretrained(tmp_path / "model")
    found = run(tmp_path / "out", model=str(tmp_path / "model"), dtype="float64")
    assert found.exact <= 1e-12 and 1e-10 < found.unconverted < 1e-4


# bad input


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(dtype="int8"), ValueError, r"^dtype: expected one of auto, float64, .*, got 'int8'"),
        (dict(bound=-1.0), ValueError, r"^bound: expected a number >= 0, got -1.0"),
        (dict(bound=float("nan")), ValueError, r"^bound: expected a number >= 0, got nan"),
        (dict(tokens=0), ValueError, r"^tokens: expected at least 1, got 0"),
        (dict(length=65), ValueError, r"^length: expected at most 64, which the model takes, got 65"),
        (dict(length=0), ValueError, r"^length: expected at least 1, got 0"),
        (dict(tokens=10, length=20), ValueError, r"^tokens: expected at least one window of 20, got 10"),
        (dict(revision="main"), ValueError, r"^revision: expected none for a model in a folder, got 'main'"),
        (dict(corpus="nowhere.txt"), FileNotFoundError, r"^corpus: expected 'stdlib' .*, got 'nowhere.txt'"),
        (dict(model="/no/such/folder"), OSError, r"^model: there is no folder '/no/such/folder'"),
    ],
    ids=lambda value: name_of(value) if isinstance(value, dict) else "",
)
def test_bad_input_is_named_before_any_work(run, tmp_path, monkeypatch, changes, error, message):
    monkeypatch.setattr(convert, "agreement", lambda *_: pytest.fail("work before the refusal"))
    with pytest.raises(error, match=message):
        run(tmp_path / "out", **changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("llama", r"^model: expected LayerNorm .* is a LlamaRMSNorm"),
        ("bloom", r"^model: transformer\.word_embeddings_layernorm normalises what stays"),
        ("gemma2", r"^model: model\.layers\.0\.post_attention_layernorm normalises what stays"),
        ("t5", r"^model: expected one that reads one text, got a T5Config"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*RoPE")
def test_a_model_that_cannot_be_converted(run, tmp_path, monkeypatch, family, message):
    monkeypatch.setattr(convert, "agreement", lambda *_: pytest.fail("work before the refusal"))
    uneven(family, dtype=torch.float32, vocab_size=256).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "out", model=str(tmp_path / "model"), length=64)
    assert not (tmp_path / "out").exists()


def test_a_text_of_less_than_a_window(run, tmp_path):
    (tmp_path / "short.txt").write_text("x" * 15)
    with pytest.raises(ValueError, match=r"^corpus: expected .*short\.txt to hold a window of 64 tokens, it has fewer"):
        run(tmp_path / "out", corpus=str(tmp_path / "short.txt"))


# the command


def test_the_command(folder, tmp_path):
    arguments = ["convert", str(folder / "tiny"), str(tmp_path / "out"), "--tokens", "100"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Largest difference of a logit on 64 tokens (the largest logit is ")
    assert float(lines[1].rpartition(" ")[2]) <= 1e-12 and lines[1].lstrip().startswith("float64")
    assert "float32" in lines[2] and len(lines) == 3
    ng.load_converted(tmp_path / "out")
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 1 and again.stderr.splitlines()[-1].startswith(
        "Error: out: expected a new or empty folder"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--bound", "1e-20"], "Error: bound: expected logits to differ by at most 1e-20, got "),
        (["--bound", "small"], "Invalid value for '--bound'"),
        (["--dtype", "int8"], "Error: dtype: expected one of auto, "),
        (["--length", "0"], "Invalid value for '--length'"),
        (["--corpus", "nowhere.txt"], "Error: corpus: expected 'stdlib'"),
        (["--tokens", "0"], "Error: tokens: expected at least 1, got 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_a_line(folder, tmp_path, changes, message):
    arguments = ["convert", str(folder / "tiny"), str(tmp_path / "out"), "--corpus", str(folder / "text.txt"), *changes]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (1, 2) and message in result.stderr
    assert isinstance(result.exception, SystemExit), "a traceback"
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_converted_is_a_line(tmp_path):
    uneven("bert", dtype=torch.float32).save_pretrained(tmp_path / "bert")
    result = CliRunner().invoke(main, ["convert", str(tmp_path / "bert"), str(tmp_path / "out")])
    assert result.exit_code == 1 and "Error: tokenizer: " in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_agreement_is_of_the_model_with_itself_in_float64(dtype):
    model = uneven("gpt2", dtype=dtype)
    batches = [IDS[:2], IDS[2:]]
    before, rounded = logits(copy.deepcopy(model).double()), logits(model)
    converted_rounded = logits(ng.to_rms_norm(copy.deepcopy(model)))
    found = agreement(model, batches)
    assert found.exact < 1e-10, "the conversion was compared in the model's own format"
    assert found.unconverted == pytest.approx(apart(rounded, before), rel=1e-6), "not the largest, or after converting"
    assert found.converted == pytest.approx(apart(converted_rounded, before), rel=1e-6), "not from the original's"
    assert found.largest == pytest.approx(float(before.abs().max()))
    assert (found.tokens, found.dtype) == (IDS.numel(), str(dtype).removeprefix("torch."))
    assert {site.kind for site in ng.find_norms(model)} == {"rms"}, "the model was to be converted in place"


def test_an_agreement_on_no_text_is_refused():
    model = uneven("gpt2")
    with Untouched(model), pytest.raises(ValueError, match=r"^batches: expected at least one, got none"):
        agreement(model, [])


def test_an_agreement_of_a_model_that_cannot_be_converted_is_refused():
    model = uneven("bloom")
    with (
        Untouched(model),
        pytest.raises(ValueError, match=r"^model: transformer\.word_embeddings_layernorm normalises"),
    ):
        agreement(model, [IDS])
