"""Surveys from names: what comes out, and which tokens are read."""

import json
import shutil

import normgeom as ng
import pandas as pd
import pytest
from normgeom.commands import survey
from normgeom.commands.survey import survey_model
from normgeom.jobs import digest
from normgeom.survey.directions import DEFAULT, nulls
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import BYTES, first_windows, load_tokenizer
from tiny_models import tiny
from transformers import AutoModel

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer")
DIRECTIONS = [*DEFAULT, *nulls(1)]


@pytest.fixture
def run(given, tmp_path):
    def call(out=tmp_path / "out", **changes):
        named = dict(model=str(given / "tiny-gpt2"), corpus=str(given / "long.txt"), out=out)
        sizes = dict(tokens=600, length=16, batch_size=4, nulls=1, seed=0, device="cpu", dtype="auto", quiet=False)
        return survey_model(**named | sizes | changes)

    return call


def batches_of(given, encoder=BYTES):
    return first_windows(load_corpus(given / "long.txt"), encoder, 600, 16, 4)


def test_the_table_is_that_of_a_survey_by_hand(given, run, tmp_path):
    noted = run()
    batches = batches_of(given)
    by_hand = ng.Survey(AutoModel.from_pretrained(given / "tiny-gpt2"), DIRECTIONS, 0)
    by_hand.run(batches, progress=False)
    table = pd.read_parquet(tmp_path / "out" / survey.TABLE)
    pd.testing.assert_frame_equal(table, by_hand.table(), check_exact=True)
    assert noted == json.loads((tmp_path / "out" / "provenance.json").read_text("utf-8"))
    assert noted["model"] == dict(name="tiny-gpt2", sha256=digest(given / "tiny-gpt2"))
    assert noted["windows"] == dict(length=16, batch_size=4) and noted["tokenizer"] == "bytes"
    assert (noted["seed"], noted["dtype"], noted["device"], noted["network"]) == (0, "float32", "cpu", "GPT2Model")
    assert (noted["tokens"], noted["batches"]) == (592, len(batches))
    assert (noted["digest"], noted["fingerprint"]) == (by_hand.digest, by_hand.fingerprint)
    names = ["provenance.json", "state.safetensors", "table.parquet"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


def test_dtype_seed_and_the_largest_length(run, tmp_path):
    changed = run(dtype="bfloat16", seed=3, length=512, tokens=64)
    assert changed["dtype"] == "bfloat16"
    assert changed["windows"]["length"] == 64, "the model takes 64 positions"
    assert ng.Survey.load(tmp_path / "out" / "state.safetensors").seed == 3


def test_a_model_with_a_tokenizer_reads_its_tokens(given, run, tmp_path):
    model = shutil.copytree(given / "tiny-gpt2", tmp_path / "model")
    shutil.copytree(given / "words", model, dirs_exist_ok=True)
    had = run(model=str(model))
    alone = ng.Survey(AutoModel.from_pretrained(model)).run(
        batches_of(given, load_tokenizer(str(model))), progress=False
    )
    assert had["digest"] == alone.digest, "other token ids than the tokenizer's"


def test_a_model_whose_configuration_states_no_positions(run, tmp_path):
    tiny("bloom", vocab_size=256).save_pretrained(tmp_path / "bloom")
    assert run(model=str(tmp_path / "bloom"), length=512)["windows"]["length"] == 512


def flipped(state, _):
    content = bytearray(state.read_bytes())
    content[-20] ^= 1
    state.write_bytes(content)


DAMAGE = {
    "a flipped bit": flipped,
    "of another text": lambda state, run: (
        run(out := state.parent.with_name("other"), length=8),
        shutil.copy(out / state.name, state),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_state_that_is_not_as_it_was_left_says_what_to_delete(run, tmp_path, damage):
    had = run()
    state = tmp_path / "out" / survey.STATE
    DAMAGE[damage](state, run)
    with pytest.raises(ValueError, match=rf"^(path|checkpoint): {state} .*; delete it or name another"):
        run()
    state.unlink()
    assert {**run(), "finished": ""} == {**had, "finished": ""}


def test_a_tokenizer_of_another_model(given, run, tmp_path):
    """Ids that the model does not take are refused, and nothing is left."""
    model = shutil.copytree(given / "tiny-gpt2", tmp_path / "model")
    words = json.loads((given / "words" / "tokenizer.json").read_text("utf-8"))
    words["model"]["vocab"]["said"] = 900
    shutil.copytree(given / "words", model, dirs_exist_ok=True)
    (model / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ValueError, match=r"expected token ids from 0 to 255, got 0 to 900; is the tokenizer another"):
        run(model=str(model))
    assert not (tmp_path / "out").exists()
