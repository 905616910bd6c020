"""Surveys from names: what a run writes, that it goes on where it stopped, and what it refuses."""

import errno
import json
import os
import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import normgeom as ng
import pandas as pd
import pytest
import torch
from normgeom.commands import survey
from normgeom.commands.survey import survey_model
from normgeom.jobs import processes as launching
from normgeom.jobs.folders import LOCK, held
from normgeom.survey import survey as surveying
from normgeom.text import corpora
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import BYTES, TokenBatches, load_tokenizer
from safetensors.torch import load_file, save_file
from tiny_models import tiny
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModel, PreTrainedTokenizerFast

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer")
DIRECTIONS = ("uniform", "signs_a", "matched_a")
# 10 batches: nine of 4 windows and one of 1
SETTINGS = dict(tokens=600, length=16, batch_size=4, directions=DIRECTIONS, device="cpu")
BATCHES = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model without a tokenizer, and a text."""
    folder = tmp_path_factory.mktemp("given")
    tiny("gpt2", vocab_size=256).save_pretrained(folder / "tiny-gpt2")
    (folder / "text.txt").write_text("".join(f"{i}: γ ⊙ n + β, as it was said\n" for i in range(300)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """The command's work, with what a test changes."""

    def call(out, **changes):
        return survey_model(
            **dict(model=str(folder / "tiny-gpt2"), corpus=str(folder / "text.txt"), out=out) | SETTINGS | changes
        )

    return call


@pytest.fixture(scope="module")
def undisturbed(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "folder" / "of" / "its own"
    return out, run(out)


@pytest.fixture
def measured(monkeypatch):
    """The batches that are measured, by their number of tokens; the pilot is none of them."""
    seen = []
    measure = ng.Survey._measure
    monkeypatch.setattr(
        ng.Survey, "_measure", lambda self, batch, _: seen.append(batch.numel()) or measure(self, batch, _)
    )
    return seen


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def same_result(out, undisturbed):
    expected, _ = undisturbed
    pd.testing.assert_frame_equal(
        pd.read_parquet(out / survey.TABLE), pd.read_parquet(expected / survey.TABLE), check_exact=True
    )
    mine, theirs = (json.loads((o / survey.PROVENANCE).read_text("utf-8"))["had"] for o in (out, expected))
    assert {**mine, "finished": ""} == {**theirs, "finished": ""}
    assert not list(out.glob("*.part")), "an unfinished file is left"


def fails_after(monkeypatch, owner, name, times):
    """``owner.name`` works so many times; then there is no space left, and half of a file that it writes to a path."""
    works, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        calls.append(args)
        if len(calls) <= times:
            return works(*args, **kwargs)
        for path in args:
            if isinstance(path, Path):
                path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(owner, name, call)


# what comes out


def test_the_table_is_that_of_a_survey_by_hand(folder, undisturbed):
    out, _ = undisturbed
    batches = list(TokenBatches(load_corpus(folder / "text.txt"), BYTES, 600, 16, 4))
    assert len(batches) == BATCHES
    model = AutoModel.from_pretrained(folder / "tiny-gpt2")
    by_hand = ng.Survey(model, DIRECTIONS, 0, pilot=batches[0]).run(batches, progress=False)
    table = pd.read_parquet(out / survey.TABLE)
    pd.testing.assert_frame_equal(table, by_hand.table(), check_exact=True)
    assert set(table.direction) == set(DIRECTIONS) and table.tokens.max() == 592


def test_what_was_asked_for_and_had_is_noted(folder, undisturbed):
    out, returned = undisturbed
    text = (out / survey.PROVENANCE).read_text("utf-8")
    noted = json.loads(text)
    assert returned == noted
    assert str(folder) not in text and str(out) not in text, "a path of this machine"
    asked, had = noted["asked"], noted["had"]
    assert asked["model"] == dict(name="tiny-gpt2", revision=None, commit=None)
    assert asked["corpus"] == load_corpus(folder / "text.txt").provenance
    assert asked["windows"] == TokenBatches(load_corpus(folder / "text.txt"), BYTES, 600, 16, 4).provenance
    assert {key: asked[key] for key in ("directions", "seed", "dtype", "device", "processes")} == dict(
        directions=list(DIRECTIONS), seed=0, dtype="auto", device="cpu", processes=1
    )
    assert set(asked["versions"]) == {"python", "torch", "transformers", "tokenizers", "normgeom"}
    assert asked["versions"]["torch"] == metadata.version("torch")
    loaded = ng.Survey.load(out / "state-0-of-1.safetensors")
    assert (
        (had["tokens"], had["tokens_read"], had["batches"])
        == (592, 592, BATCHES)
        == (loaded.tokens, 592, loaded.batches)
    )
    assert (had["digest"], had["fingerprint"]) == (loaded.digest, loaded.fingerprint)
    assert (had["network"], had["dtype"], had["devices"], had["excluded"]) == ("GPT2Model", "float32", ["cpu"], [])
    assert noted["started"] <= had["finished"]
    assert sorted(contents(out)) == ["provenance.json", "state-0-of-1.safetensors", "table.parquet"]


def test_a_model_with_a_tokenizer_reads_its_tokens(folder, run, tmp_path):
    model = shutil.copytree(folder / "tiny-gpt2", tmp_path / "with-tokenizer")
    vocabulary = {word: i for i, word in enumerate(["[UNK]", ":", "γ", "⊙", "n", "as", "it"])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(model)
    had = run(tmp_path / "out", model=str(model))["had"]
    batches = list(TokenBatches(load_corpus(folder / "text.txt"), load_tokenizer(str(model), 256), 600, 16, 4))
    alone = ng.Survey(AutoModel.from_pretrained(folder / "tiny-gpt2")).run(batches, progress=False)
    assert had["digest"] == alone.digest, "other token ids than the tokenizer's"


def test_dtype_seed_and_default_length(run, tmp_path):
    changed = run(tmp_path / "a", dtype="bfloat16", seed=3, length=None, tokens=64)
    assert changed["had"]["dtype"] == "bfloat16"
    assert changed["asked"]["windows"]["length"] == 64, "the model takes 64 positions, fewer than the default"
    assert ng.Survey.load(tmp_path / "a" / "state-0-of-1.safetensors").seed == 3


def test_vectors_without_an_angle_are_noted(folder, run, tmp_path):
    model = AutoModel.from_pretrained(folder / "tiny-gpt2")
    torch.nn.init.constant_(model.h[1].mlp.c_proj.bias, float("inf"))
    model.save_pretrained(tmp_path / "broken")
    broken = dict(model=str(tmp_path / "broken"), directions=["uniform"])
    with pytest.raises(ValueError, match=r"^model: the weights of .*\(with NaN or Inf: h\.1\.mlp\.c_proj\.bias\)"):
        run(tmp_path / "out", **broken)
    assert not (tmp_path / "out").exists()
    with pytest.warns(UserWarning, match=r"vectors with NaN or Inf entries were left out, at ln_f; see"):
        had = run(tmp_path / "out", **broken, allow_missing=True)["had"]
    assert [(row["site"], row["nonfinite"]) for row in had["excluded"]] == [("ln_f", 592)] * 2


def test_a_corpus_that_ends_early_is_surveyed_and_said(folder, run, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("x" * 100)
    with pytest.warns(UserWarning, match="^the corpus ended: 96 tokens of the 592 asked for were read"):
        noted = run(tmp_path / "out", corpus=str(text))
    assert noted["asked"]["windows"]["asked"] == 600
    assert (noted["had"]["tokens"], noted["had"]["tokens_read"]) == (96, 96), "tokens are claimed that were not seen"


# going on


@pytest.mark.parametrize("batches", [1, 4, 9])
def test_an_interrupted_run_goes_on(run, undisturbed, tmp_path, monkeypatch, measured, batches):
    with monkeypatch.context() as patch:
        fails_after(patch, ng.Survey, "_measure", batches)
        with pytest.raises(OSError, match=r"^out: "):
            run(tmp_path)
    assert len(measured) == batches
    assert not (tmp_path / survey.TABLE).exists(), "a table of half a survey"
    run(tmp_path)
    assert len(measured) == BATCHES, "batches that were saved are measured again"
    same_result(tmp_path, undisturbed)


def test_a_finished_run_measures_nothing_again(run, undisturbed, tmp_path, measured):
    out = shutil.copytree(undisturbed[0], tmp_path / "out")
    run(out)
    assert measured == []
    same_result(out, undisturbed)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_run_that_failed_before_its_first_batch_claims_no_folder(run, undisturbed, tmp_path, monkeypatch, error):
    def stop(*_, **__):
        assert json.loads((tmp_path / survey.PROVENANCE).read_text("utf-8"))["asked"]["seed"] == 5
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ng.Survey, "run", stop)
        with pytest.raises(error):
            run(tmp_path, seed=5)
    assert contents(tmp_path) == {}, "a mark without results"
    assert run(tmp_path)["asked"]["seed"] == 0, "what was asked for is that of the run before"
    same_result(tmp_path, undisturbed)


# a full disk


@pytest.mark.parametrize("batches", [0, 3])
def test_a_full_disk_while_a_state_is_saved(run, undisturbed, tmp_path, monkeypatch, batches):
    with monkeypatch.context() as patch:
        fails_after(patch, surveying, "save", batches)
        patch.setattr(surveying, "SAVE_EVERY", 0)
        with pytest.raises(OSError, match=r"^out: .*No space left on device.*; what was saved before is whole"):
            run(tmp_path)
    saved = tmp_path / "state-0-of-1.safetensors"
    assert saved.exists() == (batches > 0)
    assert not batches or ng.Survey.load(saved).batches == batches, "the state that was saved before is lost"
    run(tmp_path)
    same_result(tmp_path, undisturbed)


def test_a_full_disk_before_the_first_batch(run, tmp_path, monkeypatch):
    fails_after(monkeypatch, Path, "write_text", 0)
    monkeypatch.setattr(AutoModel, "from_pretrained", lambda *args, **kwargs: pytest.fail("work before the refusal"))
    with pytest.raises(OSError, match=r"^out: .*No space left on device; what was saved"):
        run(tmp_path / "out")
    assert not (tmp_path / "out").exists(), "an unfinished file is left"


@pytest.mark.parametrize(("module", "name"), [(pd.DataFrame, "to_parquet"), (Path, "write_text")])
def test_a_full_disk_at_the_end(run, undisturbed, tmp_path, monkeypatch, module, name):
    out = shutil.copytree(undisturbed[0], tmp_path / "out")
    before = contents(out)
    with monkeypatch.context() as patch:
        fails_after(patch, module, name, 0)
        with pytest.raises(OSError, match=r"^out: .*No space left on device"):
            run(out)
    after = contents(out)
    assert after.keys() == before.keys(), "an unfinished file is left"
    for kept in ("provenance.json", "table.parquet"):
        assert after[kept] == before[kept] or (kept, name) == ("table.parquet", "write_text"), f"half of {kept}"
    same_result(out, undisturbed)


# folders of others


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(seed=1), r"seed: 0 there, 1 asked for"),
        (dict(directions=("uniform",)), r"directions: \['uniform', 'signs_a', 'matched_a'\] there, \['uniform'\]"),
        (dict(tokens=1000), r"windows.asked: 600 there, 1000 asked for"),
        (dict(length=8), r"windows.length: 16 there, 8 asked for"),
        (dict(batch_size=2), r"windows.batch_size: 4 there, 2 asked for"),
        (dict(dtype="float64"), r"dtype: 'auto' there, 'float64' asked for"),
        (
            dict(corpus="other.txt"),
            r"corpus.name: 'text.txt' there, 'other.txt' asked for; corpus.sha256: .*",
        ),
        (dict(model="other"), r"model.name: 'tiny-gpt2' there, 'other' asked for"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_folder_of_another_survey_is_refused(folder, run, undisturbed, tmp_path, monkeypatch, changes, named):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "tiny-gpt2", "other")
    (tmp_path / "other.txt").write_text("another text. " * 100)
    before = contents(undisturbed[0])
    monkeypatch.setattr(AutoModel, "from_pretrained", lambda *args, **kwargs: pytest.fail("work before the refusal"))
    with pytest.raises(ValueError, match=rf"^out: .* holds another survey \({named}.*; name another folder"):
        run(undisturbed[0], **changes)
    assert contents(undisturbed[0]) == before, "the folder was touched"


@pytest.mark.parametrize("key", ["processes", "device"])
def test_another_number_of_processes_or_device_is_another_survey(run, undisturbed, tmp_path, key):
    out = shutil.copytree(undisturbed[0], tmp_path / "out")
    noted = json.loads((out / survey.PROVENANCE).read_text("utf-8"))
    noted["asked"][key] = 7
    (out / survey.PROVENANCE).write_text(json.dumps(noted))
    with pytest.raises(ValueError, match=rf"^out: .*\({key}: 7 there, .* asked for\)"):
        run(out)


def test_another_model_in_a_folder_of_the_same_name_is_refused(folder, run, undisturbed, tmp_path):
    model = AutoModel.from_pretrained(folder / "tiny-gpt2")
    model.h[1].mlp.c_fc.weight.data[-1, -1] += 1e-3  # the last of its entries
    model.save_pretrained(tmp_path / "tiny-gpt2")
    before = contents(undisturbed[0])
    with pytest.raises(ValueError, match=r"^out: .* holds a survey of other weights under this name; name another"):
        run(undisturbed[0], model=str(tmp_path / "tiny-gpt2"))
    assert contents(undisturbed[0]) == before, "the folder was touched"


@pytest.mark.parametrize("left", ["state-0-of-2.safetensors", "table.parquet"])
def test_results_of_nobody_are_not_written_over(run, tmp_path, left):
    (tmp_path / left).write_bytes(b"someone's work")
    with pytest.raises(ValueError, match=rf"^out: .* holds {left} without provenance.json; name another folder"):
        run(tmp_path)
    assert contents(tmp_path) == {left: b"someone's work"}


@pytest.mark.parametrize("text", ["not JSON", "[]", "{}", '{"asked": 3}'])
def test_a_provenance_of_something_else_is_not_written_over(run, tmp_path, text):
    (tmp_path / survey.PROVENANCE).write_text(text)
    with pytest.raises(ValueError, match=r"^out: .* is not the provenance of a survey; name another folder"):
        run(tmp_path)
    assert contents(tmp_path) == {survey.PROVENANCE: text.encode()}


def test_the_folder_of_a_training_is_refused(run, tmp_path, monkeypatch):
    """And its provenance stays, without which the same training would be refused."""
    (tmp_path / "text.bin").write_bytes(b"ids")
    mark = json.dumps(dict(work="training", asked=dict(seed=0), started="then"))
    (tmp_path / survey.PROVENANCE).write_text(mark)
    monkeypatch.setattr(AutoModel, "from_pretrained", lambda *args, **kwargs: pytest.fail("work before the refusal"))
    with pytest.raises(
        ValueError, match=r"^out: .* holds a training, expected a survey or nothing; name another folder"
    ):
        run(tmp_path)
    assert contents(tmp_path) == {"text.bin": b"ids", survey.PROVENANCE: mark.encode()}


def test_a_folder_in_use_is_refused_before_the_corpus_is_read(run, tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "load_corpus", lambda *_: pytest.fail("work before the refusal"))
    with (
        held(tmp_path, tmp_path / LOCK),
        pytest.raises(BlockingIOError, match=r"^out: .* is in use by another run; wait until it has ended"),
    ):
        run(tmp_path)
    assert contents(tmp_path) == {}


def test_a_damaged_state_says_what_to_delete(run, undisturbed, tmp_path):
    out = shutil.copytree(undisturbed[0], tmp_path / "out")
    state = out / survey.STATE.format(0, 1)
    state.write_bytes(state.read_bytes()[:500])
    with pytest.raises(
        OSError, match=r"^out: .*state-0-of-1.safetensors is damaged \(.*\); delete it and run the same command"
    ):
        run(out)
    state.unlink()
    run(out)
    same_result(out, undisturbed)


def test_a_folder_with_other_files_is_taken(run, undisturbed, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    run(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    same_result(tmp_path, undisturbed)


# what cannot be


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(dtype="int8"), ValueError, r"^dtype: expected one of auto, float64, .*, got 'int8'"),
        (dict(device="gpu"), ValueError, r"^device: expected 'cpu', 'cuda', .*, got 'gpu'"),
        (dict(device="meta"), ValueError, r"^device: expected 'cpu', 'cuda', .*, got 'meta'"),
        (dict(device_map="all", device=None), ValueError, r"^device_map: expected one of auto, .*, got 'all'"),
        (dict(device_map="auto"), ValueError, r"^device_map: expected no device beside it, got 'cpu'"),
        (dict(directions=("uniform", "north")), ValueError, r"^directions: expected 'uniform', .*, got 'north'"),
        (dict(directions=()), ValueError, r"^directions: expected at least one"),
        (dict(model=""), ValueError, r"^model: expected a name on the hub or a folder, got ''"),
        (dict(tokens=15), ValueError, r"^tokens: expected at least one window of 16, got 15"),
        (dict(length=65), ValueError, r"^length: expected at most 64, which the model takes, got 65"),
        (dict(length=0), ValueError, r"^length: expected at least 1, got 0"),
        (dict(batch_size=0), ValueError, r"^batch_size: expected at least 1, got 0"),
        (dict(revision="main"), ValueError, r"^revision: expected none for a model in a folder, got 'main'"),
        (dict(corpus="nowhere.txt"), FileNotFoundError, r"^corpus: expected 'stdlib' .*, got 'nowhere.txt'"),
        (dict(model="/no/such/folder"), OSError, r"^model: there is no folder '/no/such/folder'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_input_is_named_before_any_work(run, tmp_path, monkeypatch, changes, error, message):
    monkeypatch.setattr(AutoModel, "from_pretrained", lambda *args, **kwargs: pytest.fail("work before the refusal"))
    with pytest.raises(error, match=message):
        run(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists(), "something was written"


def test_a_model_out_of_reach_says_what_to_do(run, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"^model: 'gpt2' cannot be loaded .*a folder .* needs no network, or a name"):
        run(tmp_path / "out", model="gpt2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("allowed", [False, True])
def test_a_weight_that_is_missing(folder, run, tmp_path, allowed):
    model = shutil.copytree(folder / "tiny-gpt2", tmp_path / "model")
    state = load_file(model / "model.safetensors")
    del state["transformer.h.1.ln_2.weight"]
    save_file(state, model / "model.safetensors", metadata={"format": "pt"})
    if not allowed:
        with pytest.raises(
            ValueError, match=r"^model: the weights of .* \(missing: h\.1\.ln_2\.weight\); .*--allow-missing"
        ):
            run(tmp_path / "out", model=str(model))
        assert not (tmp_path / "out").exists(), "a mark without results"
    else:
        with pytest.warns(UserWarning, match=r"drawn \(missing: h\.1\.ln_2\.weight\)"):
            assert run(tmp_path / "out", model=str(model), allow_missing=True)["asked"]["allow_missing"] is True


def test_a_tokenizer_of_another_model(folder, run, tmp_path):
    """It gives ids that the model does not take; by itself the model reads bytes, which is said."""
    vocabulary = {"[UNK]": 0, "said": 900}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path / "words")
    said = r"expected token ids from 0 to 255, got 0 to 900; is the tokenizer another model's"
    with pytest.raises(ValueError, match=said):
        run(tmp_path / "out", tokenizer=str(tmp_path / "words"))
    asked = run(tmp_path / "own")["asked"]
    assert (asked["tokenizer"], asked["windows"]["tokenizer"]) == ("bytes", "bytes")
    assert run(tmp_path / "asked", tokenizer="bytes")["asked"]["tokenizer"] == "bytes"


def test_a_damaged_tokenizer_is_not_replaced_by_bytes(folder, run, tmp_path):
    model = shutil.copytree(folder / "tiny-gpt2", tmp_path / "model")
    (model / "tokenizer.json").write_text('{"version": "1.0", "trunc')
    with pytest.raises(OSError, match=r"^tokenizer: '.*model' has no usable one"):
        run(tmp_path / "out", model=str(model))
    assert not (tmp_path / "out").exists()


def test_a_folder_without_weights(folder, run, tmp_path):
    model = shutil.copytree(folder / "tiny-gpt2", tmp_path / "empty")
    (model / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"^model: '.*empty' cannot be loaded"):
        run(tmp_path / "out", model=str(model))


@pytest.mark.parametrize("family", ["t5", "vit"])
def test_a_model_that_does_not_read_one_text(run, tmp_path, family):
    tiny(family).save_pretrained(tmp_path / family)
    with pytest.raises(ValueError, match=r"^model: expected one that reads one text, got a (T5|ViT)Config"):
        run(tmp_path / "out", model=str(tmp_path / family))


@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_a_model_whose_configuration_states_no_positions(run, tmp_path, family):
    tiny(family, vocab_size=256).save_pretrained(tmp_path / family)
    with pytest.raises(ValueError, match=rf"^length: .*, because the configuration of '.*{family}' states no number"):
        run(tmp_path / "out", model=str(tmp_path / family), length=None)
    assert not (tmp_path / "out").exists()
    found = run(tmp_path / "out", model=str(tmp_path / family), length=16, tokens=96)
    assert found["asked"]["windows"]["length"] == 16


def test_a_corpus_of_less_than_a_window(run, tmp_path):
    (tmp_path / "short.txt").write_text("x" * 15)
    with pytest.raises(ValueError, match=r"^corpus: expected .*short.txt to hold a window of 16 tokens, it has fewer"):
        run(tmp_path / "out", corpus=str(tmp_path / "short.txt"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("processes", "changes", "message"),
    [
        (1, {}, r"^device: expected 'cpu' where 2 processes run, got 'mps'"),
        (2, dict(device="cpu:0"), r"^device: expected no number where 2 processes run, got 'cpu:0'"),
        (2, dict(device_map="auto", device=None), r"^device_map: expected one process, got 2"),
    ],
    ids=["a device for one process", "a device with a number", "a device map"],
)
def test_what_two_launched_processes_cannot_have(run, tmp_path, monkeypatch, processes, changes, message):
    """Where accelerate gives a device to one process only, each of two would take itself for the first."""
    left = []
    state = SimpleNamespace(
        num_processes=processes, device=torch.device("mps"), destroy_process_group=lambda: left.append(True)
    )
    monkeypatch.setattr(launching, "PartialState", lambda **settings: state)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "out", **changes)
    assert left == [True], "the group of processes is left open"
    assert not (tmp_path / "out").exists()


def test_a_corpus_on_the_hub_is_surveyed(run, tmp_path, monkeypatch):
    (tmp_path / "hub").mkdir()
    pd.DataFrame(dict(text=["γ ⊙ n"] * 100)).to_parquet(tmp_path / "hub" / "train.parquet")
    monkeypatch.setattr(corpora, "HUB", dict(wikipedia=(str(tmp_path / "hub"), "default", None)))
    noted = run(tmp_path / "out", corpus="wikipedia")
    assert noted["asked"]["corpus"]["name"] == "wikipedia" and noted["had"]["tokens"] == 592
    first = next(iter(TokenBatches(load_corpus("wikipedia"), BYTES, 600, 16, 4)))
    assert bytes(first[0].tolist()).decode(errors="ignore").startswith("γ ⊙ n\n\nγ")


def test_a_share_without_a_batch_is_merged_too(run, tmp_path, monkeypatch):
    """One batch for two processes.  The second runs while the first waits for it; no process is launched here."""

    def process(rank, waits):
        return SimpleNamespace(
            process_index=rank,
            is_main_process=rank == 0,
            num_processes=2,
            device=torch.device("cpu"),
            wait_for_everyone=lambda: next(waits),
            destroy_process_group=lambda: None,
        )

    def second():
        yield
        with monkeypatch.context() as patch:
            patch.setattr(launching, "PartialState", lambda **settings: process(1, iter([None, None])))
            assert run(tmp_path, tokens=64) is None, "the second process has no result of its own"
        yield

    monkeypatch.setattr(launching, "PartialState", lambda **settings: process(0, second()))
    had = run(tmp_path, tokens=64)["had"]
    assert (had["tokens"], had["batches"]) == (64, 1)
    assert [ng.Survey.load(tmp_path / f"state-{rank}-of-2.safetensors").batches for rank in (0, 1)] == [1, 0]
