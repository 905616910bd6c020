"""Twins from names: what a training writes, that it goes on, what it refuses, and the command."""

import json
import shutil
import warnings
from dataclasses import asdict
from importlib import metadata

import numpy as np
import pandas as pd
import pytest
import tiny_training
import torch
from click.testing import CliRunner
from huggingface_hub import constants
from normgeom.cli import main
from normgeom.commands import train as its_module
from normgeom.commands.train import train_twins
from normgeom.jobs.folders import LOCK, held
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import Encoder, byte_tokens, load_tokenizer
from normgeom.training import trainer
from normgeom.training.stages import held_out_loss
from normgeom.training.twins import NORMS, SIZES, Size, variants
from tiny_training import TABLES, disturb, same_results
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

SIZE = Size(layers=1, width=16, heads=2, rate=1e-2, steps=4, batch=4, length=16, eval_interval=2)
WINDOWS, HELD_OUT = SIZE.steps * SIZE.batch, 80
GIVEN = dict(size="1M", tokenizer="bytes", seed=3, held_out=HELD_OUT, device="cpu", progress=False)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setitem(SIZES, "1M", SIZE)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts of more bytes than are needed, of 150, and of 2."""
    folder = tmp_path_factory.mktemp("texts")
    long = "".join(f"{i}: γ ⊙ n + β, as it was said\n" for i in range(100))
    for name, text in (("long", long), ("other", long[7:]), ("short", "x" * 150), ("none", "γ")):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def train(texts):
    def call(out, corpus="long", **changes):
        path = texts / f"{corpus}.txt"
        return train_twins(**(dict(out=out, corpus=str(path if path.exists() else corpus)) | GIVEN | changes))

    return call


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """A training that nothing disturbed: its folder, and what it returned."""
    out = tmp_path_factory.mktemp("whole") / "folder" / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "1M", SIZE)
        return out, train(out)


@pytest.fixture
def none_trains(monkeypatch):
    """Whoever trains in this test fails."""
    monkeypatch.setattr(trainer, "Trainer", lambda **_: pytest.fail("trained"))


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# what comes out


def test_what_is_written(whole):
    out, _ = whole
    assert sorted(path.name for path in out.iterdir()) == ["layer", "provenance.json", "rms", "text.bin"]
    for norm in ("layer", "rms"):
        assert sorted(path.name for path in (out / norm).iterdir()) == sorted(
            ["model", *(f"{name}.parquet" for name in TABLES)]
        )
        tables = tiny_training.tables(out / norm)
        assert list(tables["curve"].step) == [1, 2, 3, 4]
        assert list(tables["loss"].step) == [0, 2, 4]
        assert set(tables["survey"].kind) == {norm}, "the twins are interchanged"


def test_the_provenance(whole, texts):
    out, returned = whole
    noted = (out / "provenance.json").read_text("utf-8")
    assert returned == json.loads(noted)
    assert str(texts) not in noted and str(out) not in noted, "a path of this machine"
    asked, had = returned["asked"], returned["had"]
    assert asked["size"] == asdict(SIZE)
    assert asked["corpus"] == load_corpus(texts / "long.txt").provenance
    assert asked["tokenizer"] == dict(name="bytes", vocabulary=256)
    assert {key: asked[key] for key in ("seed", "held_out", "survey_corpus", "decay", "precision", "at_once")} == dict(
        seed=3, held_out=HELD_OUT, survey_corpus=None, decay=0.1, precision="no", at_once=None
    )
    assert (asked["device"], asked["processes"]) == ("cpu", 1)
    assert asked["versions"]["torch"] == metadata.version("torch")
    assert (had["tokens"], had["epochs"]) == (WINDOWS * 16, 1.0)
    last = {norm: float(tiny_training.tables(out / norm)["loss"].loss.iloc[-1]) for norm in ("layer", "rms")}
    assert had["loss"] == last
    assert returned["started"] <= had["finished"]


def test_the_text_is_the_corpus(whole, texts):
    """Windows to train on, then those that are held out; no more of the corpus is read than is needed."""
    got = np.fromfile(whole[0] / "text.bin", dtype=np.uint8)
    assert len(got) == WINDOWS * 16 + HELD_OUT
    expected = byte_tokens((texts / "long.txt").read_text("utf-8"))[: len(got)]
    assert torch.equal(torch.from_numpy(got).long(), expected)


def test_it_is_one_training_by_hand(whole, texts, tmp_path):
    """The second of the twins begins as if it were alone; the last of the text is what is measured."""
    ids = byte_tokens((texts / "long.txt").read_text("utf-8"))[: WINDOWS * 16 + HELD_OUT]
    held_out = list(ids[-HELD_OUT:].view(5, 16).split(4))
    for norm in ("layer", "rms"):
        network = variants(SIZE.config(256), 3, (norm,))[norm]
        first = held_out_loss(network, held_out)
        tiny_training.fit(
            tmp_path / norm,
            text=ids[:-HELD_OUT].numpy(),
            held_out=held_out,
            network=network,
            size=SIZE,
            save_every=None,
        )
        same_results(whole[0] / norm, tmp_path / norm)
        losses = tiny_training.tables(whole[0] / norm)["loss"].loss
        assert (losses.iloc[0], losses.iloc[-1]) == (first, held_out_loss(network, held_out))


def test_what_is_held_out_is_not_trained_on(whole, train, texts, tmp_path):
    """Another end of the text changes what is measured and nothing of the training."""
    text = (texts / "long.txt").read_bytes()[: WINDOWS * 16]
    (tmp_path / "changed.txt").write_bytes(text + b"x" * 100)
    train(tmp_path / "out", corpus=str(tmp_path / "changed.txt"), norm="rms")
    got, expected = (tiny_training.tables(folder / "rms") for folder in (tmp_path / "out", whole[0]))
    pd.testing.assert_frame_equal(got["curve"], expected["curve"], check_exact=True)
    pd.testing.assert_frame_equal(got["gains"], expected["gains"], check_exact=True)
    assert not got["loss"].equals(expected["loss"])


def test_another_corpus_to_measure_on(whole, train, texts, tmp_path):
    noted = train(tmp_path, norm="rms", survey_corpus=str(texts / "other.txt"))
    assert noted["asked"]["survey_corpus"]["name"] == "other.txt"
    assert len(np.fromfile(tmp_path / "text.bin", dtype=np.uint8)) == WINDOWS * 16, "text is held out for nothing"
    got, expected = (tiny_training.tables(folder / "rms") for folder in (tmp_path, whole[0]))
    pd.testing.assert_frame_equal(got["curve"], expected["curve"], check_exact=True)
    ids = byte_tokens((texts / "other.txt").read_text("utf-8"))[:HELD_OUT].view(5, 16)
    first = held_out_loss(variants(SIZE.config(256), 3, ("rms",))["rms"], ids.split(4))
    assert got["loss"].loss.iloc[0] == first


def test_settings_take_the_place_of_the_sizes(train, tmp_path):
    changes = dict(steps=2, batch_size=2, length=8, rate=0.5, spacing=1, decay=0.25, at_once=1, held_out=9)
    noted = train(tmp_path, norm="rms-plain", **changes)
    assert noted["asked"]["decay"] == 0.25 and noted["asked"]["at_once"] == 1
    assert noted["asked"]["size"] == asdict(SIZE) | dict(steps=2, batch=2, length=8, rate=0.5, eval_interval=1)
    found = tiny_training.tables(tmp_path / "rms-plain")
    assert list(found["curve"].learning_rate) == [0.5, 0.5]
    assert list(found["loss"].step) == [0, 1, 2], "the stages of the size"
    assert len(np.fromfile(tmp_path / "text.bin", dtype=np.uint8)) == (2 * 2 + 1) * 8
    assert noted["had"]["epochs"] == 1.0


def test_at_least_a_window_is_measured(train, tmp_path):
    """Fewer held-out tokens than a window are a window, and each window of training is still read once."""
    noted = train(tmp_path, norm="none", held_out=2)
    assert noted["had"]["epochs"] == 1.0
    assert len(np.fromfile(tmp_path / "text.bin", dtype=np.uint8)) == (WINDOWS + 1) * 16


def test_all_norms(train, tmp_path):
    noted = train(tmp_path, norm="all", steps=1)
    assert list(noted["had"]["loss"]) == list(NORMS)
    assert all((tmp_path / norm / "curve.parquet").exists() for norm in NORMS)


# corpora and tokenizers


def test_a_corpus_that_ends_early(train, tmp_path):
    with pytest.warns(UserWarning, match=r"^the corpus ended: 144 tokens of 336; windows are read more than once"):
        noted = train(tmp_path, "short", norm="rms")
    assert noted["had"]["tokens"] == 64 and noted["had"]["epochs"] == WINDOWS / 4
    assert len(tiny_training.tables(tmp_path / "rms")["curve"]) == SIZE.steps


@pytest.mark.parametrize("windows", [21, 20], ids=["enough", "one window less"])
def test_a_corpus_that_is_just_enough(train, texts, tmp_path, windows):
    text = (texts / "long.txt").read_bytes()[: windows * 16]
    (tmp_path / "cut.txt").write_bytes(text.decode(errors="ignore").encode().ljust(windows * 16))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(tmp_path / "out", str(tmp_path / "cut.txt"), norm="none")
    said = [str(warning.message) for warning in caught if "corpus" in str(warning.message)]
    assert len(said) == 21 - windows, said


@pytest.mark.parametrize(
    ("vocabulary", "expected"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_the_text_takes_as_little_room_as_ids_allow(train, tmp_path, monkeypatch, vocabulary, expected):
    """The largest id of all is read back as it was."""

    def encode(texts):
        ids = byte_tokens(texts)
        return torch.where(ids % 2 == 0, vocabulary - 1, ids)

    monkeypatch.setattr(its_module, "load_tokenizer", lambda *_: Encoder("mine", vocabulary, encode, torch.tensor([])))
    trained_on = []
    monkeypatch.setattr(its_module, "fit_and_measure", lambda model, text, *_: trained_on.append((model, text)))
    train(tmp_path, tokenizer="mine")
    (model, text), _ = trained_on
    assert text.dtype == expected and int(text.max()) == vocabulary - 1
    assert (tmp_path / "text.bin").stat().st_size == (WINDOWS * 16 + HELD_OUT) * np.dtype(expected).itemsize
    assert len(model.transformer.wte.weight) == vocabulary


def test_a_tokenizer_in_a_folder(train, texts, tmp_path):
    vocabulary = {word: i for i, word in enumerate(["[UNK]", ":", "γ", "⊙", "n", "as", "it"])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path / "words")
    noted = train(tmp_path / "out", tokenizer=str(tmp_path / "words"), norm="layer")
    assert noted["asked"]["tokenizer"]["vocabulary"] == 7
    got = np.fromfile(tmp_path / "out" / "text.bin", dtype=np.uint8)
    text = (texts / "long.txt").read_text("utf-8")
    assert got.tolist() == words.encode(text).ids[: len(got)]
    kept = load_tokenizer(str(tmp_path / "out" / "layer" / "model"), 7)
    assert kept.encode("γ ⊙ n").tolist() == words.encode("γ ⊙ n").ids, "the model came without its tokenizer"


# again


def test_a_finished_training_again(whole, train, none_trains):
    out, returned = whole
    before = contents(out)
    again = train(out)
    assert {**again, "had": {**again["had"], "finished": ""}} == {
        **returned,
        "had": {**returned["had"], "finished": ""},
    }
    after = contents(out)
    assert {path: text for path, text in after.items() if path.name != "provenance.json"} == {
        path: text for path, text in before.items() if path.name != "provenance.json"
    }


def test_another_norm_is_added(whole, train, tmp_path):
    """One at a time, they are the twins that were trained together; what is said in the end is of both."""
    train(tmp_path, norm="layer")
    before = contents(tmp_path / "layer")
    noted = train(tmp_path, norm="rms")
    assert contents(tmp_path / "layer") == before
    for norm in ("layer", "rms"):
        same_results(tmp_path / norm, whole[0] / norm)
    assert list(noted["had"]["loss"]) == ["layer", "rms"], "what was trained before is forgotten"
    assert noted["had"]["loss"] == whole[1]["had"]["loss"]


def test_an_interrupted_training_goes_on(whole, train, tmp_path):
    """In the second of the twins; the first is not trained again."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        disturb(patch, torch.optim.AdamW, "step", 4 + 3, stop)
        train(tmp_path)
    assert "had" not in json.loads((tmp_path / "provenance.json").read_text("utf-8"))
    with pytest.MonkeyPatch.context() as patch:
        disturb(patch, torch.optim.AdamW, "step", 3, lambda *_, **__: pytest.fail("more than two updates"))
        train(tmp_path)
    for norm in ("layer", "rms"):
        same_results(tmp_path / norm, whole[0] / norm)


# what is refused


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(seed=4), "seed: 3 there, 4 asked for"),
        (dict(steps=7), "size.steps: 4 there, 7 asked for"),
        (dict(batch_size=2), "size.batch: 4 there, 2 asked for"),
        (dict(rate=0.1), "size.rate: 0.01 there, 0.1 asked for"),
        (dict(decay=0.0), "decay: 0.1 there, 0.0 asked for"),
        (dict(corpus="other"), "corpus.name: 'long.txt' there, 'other.txt' asked for"),
        (dict(held_out=64), "held_out: 80 there, 64 asked for"),
        (dict(survey_corpus=__file__), "survey_corpus"),
        (dict(precision="bf16"), "precision: 'no' there, 'bf16' asked for"),
        (dict(at_once=2), "at_once: None there, 2 asked for"),
        (dict(norm="none", seed=4), "seed: 3 there, 4 asked for"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_folder_of_another_training_is_refused(whole, train, none_trains, changes, named):
    before = contents(whole[0])
    with pytest.raises(ValueError, match=rf"^out: .* holds another training \(.*{named}.*; name another folder"):
        train(whole[0], **changes)
    assert contents(whole[0]) == before, "the folder was touched"


def test_the_folder_of_a_survey_is_refused(train, tmp_path, none_trains):
    mark = json.dumps(dict(work="survey", asked=dict(seed=3), started="then"))
    (tmp_path / "provenance.json").write_text(mark)
    with pytest.raises(
        ValueError, match=r"^out: .* holds a survey, expected a training or nothing; name another folder"
    ):
        train(tmp_path)
    assert contents(tmp_path) == {tmp_path / "provenance.json": mark.encode()}


def test_a_folder_in_use_is_refused_before_the_corpus_is_read(train, tmp_path, monkeypatch):
    monkeypatch.setattr(its_module, "load_corpus", lambda *_: pytest.fail("work before the refusal"))
    with held(tmp_path, tmp_path / LOCK), pytest.raises(BlockingIOError, match=r"^out: .* is in use by another run"):
        train(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_not_what_was_written_is_not_trained_on(whole, train, tmp_path, none_trains):
    out = shutil.copytree(whole[0], tmp_path / "out")
    text = (out / "text.bin").read_bytes()
    (out / "text.bin").write_bytes(text[:-1] + b"?")
    with pytest.raises(OSError, match=r"^out: .*text.bin is damaged \(.*\); delete it and run the same command$"):
        train(out)
    (out / "text.bin").unlink()
    train(out)
    assert (out / "text.bin").read_bytes() == text


@pytest.mark.parametrize("left", ["text.bin", "rms"])
def test_results_of_nobody_are_not_written_over(train, tmp_path, left):
    (tmp_path / left).mkdir()
    with pytest.raises(ValueError, match=rf"^out: .* holds {left} without provenance.json; name another folder"):
        train(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [left]


NAN, INF = float("nan"), float("inf")
BAD = [
    (dict(size="2M"), r"^size: expected one of .*1M, 5M, 10M, 70M, 160M, 410M, 1B, got '2M'"),
    (dict(norm="layers"), r"^norm: expected one of both, all, layer, .*, got 'layers'"),
    (dict(precision="int8"), r"^precision: expected one of no, bf16, got 'int8'"),
    *(({name: 0}, rf"^{name}: expected a positive number, got 0") for name in ("steps", "batch_size", "length")),
    *(({name: -1}, rf"^{name}: expected a positive number, got -1") for name in ("at_once", "held_out", "spacing")),
    (dict(length=1), r"^length: expected at least 2"),
    *((dict(rate=rate), r"^rate: expected a positive number, got ") for rate in (0, -1e-3, NAN, INF)),
    *((dict(decay=decay), r"^decay: expected a number >= 0, got ") for decay in (-0.1, NAN, INF)),
    *((dict(seed=seed), r"^seed: expected a number from 0 to ") for seed in (-1, 2**32)),
    (dict(at_once=3), r"^micro_batch: expected a divisor of 4, the batch, got 3"),
    (dict(at_once=8), r"^micro_batch: expected a divisor of 4, the batch, got 8"),
    (dict(device="gpu"), r"^device: expected 'cpu', 'cuda', 'mps' or the like, got 'gpu'"),
    (dict(corpus="nowhere.txt"), r"^corpus: expected 'stdlib' .*, got 'nowhere.txt'"),
    (dict(survey_corpus="nowhere.txt"), r"^corpus: expected 'stdlib' .*, got 'nowhere.txt'"),
    (dict(tokenizer="no/such"), r"(?s)^tokenizer: .*no/such.*; name another, or 'bytes'$"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=["-".join(f"{k}-{v}" for k, v in c.items()) for c, _ in BAD])
def test_bad_input_is_named_before_any_work(train, tmp_path, monkeypatch, none_trains, changes, message):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(its_module, "variants", lambda *_: pytest.fail("work before the refusal"))
    with pytest.raises((ValueError, OSError), match=message):
        train(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists(), "something was written"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(corpus="short", held_out=144), r"^held_out: expected a window of 16 tokens to train on, got .* of 144"),
        (dict(corpus="short", held_out=10_000), r"^held_out: expected a window of 16 tokens to train on"),
        (dict(corpus="none"), r"^held_out: expected a window of 16 tokens to train on, got a corpus of 0"),
        (dict(corpus="none", survey="long"), r"^corpus: expected a window of 16 tokens to train on"),
        (dict(survey="none"), r"^survey_corpus: expected .*none.txt to hold a window of 16 tokens, it has fewer"),
    ],
    ids=["all held out", "more than all", "no text", "no text to train on", "no text to measure"],
)
def test_too_little_text(train, texts, tmp_path, none_trains, changes, message):
    """It shows when the corpus has been read; no file is left that another try could stumble over."""
    survey = changes.pop("survey", None)
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "out", survey_corpus=survey and str(texts / f"{survey}.txt"), **changes)
    assert not (tmp_path / "out").exists(), "a mark without results"


@pytest.mark.filterwarnings("ignore:.*NaN or Inf")
def test_a_training_that_diverged_says_so(train, tmp_path):
    with pytest.warns(UserWarning, match=r"^none: the loss is nan: the training diverged; try a smaller --rate"):
        train(tmp_path, norm="none", rate=1e30)


def test_the_largest_text_that_can_be_held_out(train, tmp_path):
    with pytest.warns(UserWarning, match="^the corpus ended"):
        noted = train(tmp_path, "short", held_out=128, norm="none")
    assert noted["had"]["tokens"] == 16 and noted["had"]["epochs"] == WINDOWS


def test_the_folder_of_a_refused_try_is_free(train, tmp_path):
    with pytest.raises(ValueError, match=r"^held_out: "):
        train(tmp_path, "short", held_out=10_000)
    with pytest.warns(UserWarning, match="^the corpus ended"):
        assert train(tmp_path, "short", held_out=32, norm="none")["asked"]["held_out"] == 32


# the command


@pytest.fixture
def command(texts, tmp_path):
    options = dict(size="1M", corpus=texts / "long.txt", tokenizer="bytes", seed=3, device="cpu", out=tmp_path / "out")
    return ["train", "--held-out", str(HELD_OUT), *(str(p) for k, v in options.items() for p in (f"--{k}", v))]


def test_the_command(command, whole, tmp_path, monkeypatch):
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    losses = whole[1]["had"]["loss"]
    assert result.stdout == "".join(
        f"{norm}: {losses[norm]:.4f} nats a token, {tmp_path}/out/{norm}\n" for norm in ("layer", "rms")
    )
    for norm in ("layer", "rms"):
        same_results(tmp_path / "out" / norm, whole[0] / norm)


def test_every_option_arrives(command, monkeypatch, tmp_path):
    asked = {}
    monkeypatch.setattr(its_module, "train_twins", lambda **options: asked.update(options))
    given = {
        **dict(norm="all", steps="5", rate="0.5", decay="0.25", precision="bf16"),
        **{"batch-size": "6", "length": "7", "at-once": "3", "survey-corpus": "stdlib", "spacing": "4"},
    }
    result = CliRunner().invoke(main, [*command, *(part for k, v in given.items() for part in (f"--{k}", v))])
    assert result.exit_code == 0 and result.stdout == "", result.output
    assert asked == dict(
        **dict(size="1M", out=str(tmp_path / "out"), norm="all", corpus=command[6], tokenizer="bytes", seed=3, steps=5),
        **dict(batch_size=6, length=7, rate=0.5, decay=0.25, precision="bf16", at_once=3, held_out=HELD_OUT),
        **dict(survey_corpus="stdlib", spacing=4, device="cpu"),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--size", "2M"], "10M, 70M, 160M, 410M, 1B, got '2M'\n"),
        (["--at-once", "3"], "Error: micro_batch: expected a divisor of 4, the batch, got 3"),
        (["--rate", "nan"], "Error: rate: expected a positive number, got nan\n"),
        (["--corpus", "nowhere.txt"], "Error: corpus: expected 'stdlib'"),
        (["--held-out", "100000"], "Error: held_out: expected a window of 16 tokens to train on"),
        (["--length", "1"], "Invalid value for '--length': 1 is not in the range x>=2."),
        (["--steps", "0"], "Invalid value for '--steps': 0 is not in the range x>=1."),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_a_line(command, none_trains, changes, message):
    result = CliRunner().invoke(main, [*command, *changes])
    assert result.exit_code in (1, 2) and message in result.stderr
    assert result.stderr.rstrip("\n").splitlines()[-1].startswith("Error: ") and result.stdout == ""
    assert isinstance(result.exception, SystemExit), "a traceback"


def test_another_training_in_the_folder_is_a_line(command, whole, tmp_path, none_trains):
    shutil.copytree(whole[0], tmp_path / "out")
    result = CliRunner().invoke(main, [*command, "--seed", "4"])
    assert result.exit_code == 1 and "holds another training (seed: 3 there, 4 asked for)" in result.stderr
