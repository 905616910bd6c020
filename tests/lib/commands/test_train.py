"""Twins from names: what a training writes, which text it reads, and that it is one training by hand."""

import shutil
from dataclasses import asdict
from importlib import metadata

import pytest
import tiny_training
from normgeom.commands.train import train_twins
from normgeom.text.tokens import byte_tokens, load_tokenizer
from normgeom.training.stages import held_out_loss
from normgeom.training.twins import twin
from tiny_training import SHORT, TABLES, same_results

WINDOWS, HELD_OUT = SHORT.steps * SHORT.batch, 80


@pytest.fixture(scope="module")
def train(given):
    def call(out, corpus="long", **changes):
        path = given / f"{corpus}.txt"
        sizes = dict(size="1M", tokenizer="bytes", seed=3, held_out=HELD_OUT, device="cpu", progress=False)
        return train_twins(**dict(out=out, corpus=str(path if path.exists() else corpus)) | sizes | changes)

    return call


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, train(out)


def ids_of(given):
    return byte_tokens((given / "long.txt").read_text("utf-8"))[: WINDOWS * 16 + HELD_OUT]


def test_what_is_written(whole, given):
    out, noted = whole
    assert sorted(path.name for path in out.iterdir()) == ["layer", "provenance.json", "rms"]
    for norm in ("layer", "rms"):
        names = sorted(["model", "provenance.json", *(f"{name}.parquet" for name in TABLES)])
        assert sorted(path.name for path in (out / norm).iterdir()) == names
        tables = tiny_training.tables(out / norm)
        assert list(tables["curve"].step) == [1, 2, 3, 4] and list(tables["loss"].step) == [0, 2, 4]
        assert set(tables["survey"].kind) == {norm}, "the twins are interchanged"
        assert noted["had"]["loss"][norm] == float(tables["loss"].loss.iloc[-1])
    asked = noted["asked"]
    assert asked["size"] == asdict(SHORT) and asked["tokenizer"] == dict(name="bytes", vocabulary=256)
    assert [asked[key] for key in ("seed", "held_out", "device")] == [3, HELD_OUT, "cpu"]
    assert asked["versions"]["torch"] == metadata.version("torch")
    assert (noted["had"]["tokens"], noted["had"]["epochs"]) == (WINDOWS * 16, 1.0)


def test_it_is_one_training_by_hand(whole, given, tmp_path):
    """The second of the twins begins as if it were alone; the last of the text is what is measured."""
    text, held_out = ids_of(given)[:-HELD_OUT], list(ids_of(given)[-HELD_OUT:].view(5, 16).split(4))
    for norm in ("layer", "rms"):
        network = twin(SHORT.config(256), 3, norm)
        first = held_out_loss(network, held_out)
        given_to = dict(text=text, held_out=held_out, network=network, size=SHORT)
        tiny_training.fit(tmp_path / norm, **given_to)
        same_results(whole[0] / norm, tmp_path / norm)
        losses = tiny_training.tables(whole[0] / norm)["loss"].loss
        assert (losses.iloc[0], losses.iloc[-1]) == (first, held_out_loss(network, held_out))


def test_settings_take_the_place_of_the_sizes(train, tmp_path):
    noted = train(tmp_path, steps=2, batch_size=2, length=8, eval_interval=1, held_out=2)
    assert noted["asked"]["size"] == asdict(SHORT) | dict(steps=2, batch=2, length=8, eval_interval=1)
    found = tiny_training.tables(tmp_path / "rms")
    assert list(found["loss"].step) == [0, 1, 2], "the stages of the size"
    assert (noted["had"]["tokens"], noted["had"]["epochs"]) == (2 * 2 * 8, 1.0)


def test_the_folders_of_the_twins_are_not_interchanged(whole, train, tmp_path):
    out = shutil.copytree(whole[0], tmp_path / "out")
    shutil.rmtree(out / "rms")
    (out / "layer").rename(out / "rms")
    with pytest.raises(ValueError, match=rf"^out: {out}/rms belongs to another run \(norm: layer there, rms asked for"):
        shutil.copytree(whole[0] / "layer", out / "layer")
        train(out)


def test_a_corpus_that_ends_early(train, tmp_path):
    noted = train(tmp_path, "short")
    assert noted["had"]["tokens"] == 64 and noted["had"]["epochs"] == WINDOWS / 4
    assert len(tiny_training.tables(tmp_path / "rms")["curve"]) == SHORT.steps


@pytest.mark.parametrize(
    ("corpus", "held_out", "fits"), [("short", 128, True), ("short", 144, False), ("none", 2, False)]
)
def test_the_largest_text_that_can_be_held_out(train, tmp_path, corpus, held_out, fits):
    if fits:
        assert train(tmp_path / "out", corpus, held_out=held_out)["had"]["tokens"] == 16
    else:
        with pytest.raises(ValueError, match=r"^held_out: expected a window of 16 tokens to train on, got a corpus of"):
            train(tmp_path / "out", corpus, held_out=held_out)
        assert not (tmp_path / "out").exists(), "a file is left that another try could stumble over"


def test_a_tokenizer_in_a_folder(train, given, tmp_path):
    noted = train(tmp_path / "out", tokenizer=str(given / "words"))
    assert noted["asked"]["tokenizer"] == dict(name="words", vocabulary=7)
    kept = load_tokenizer(str(tmp_path / "out" / "layer" / "model"))
    assert kept.encode("γ ⊙ n").tolist() == [2, 3, 4], "the model came without its tokenizer"
