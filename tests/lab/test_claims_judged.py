"""Records in a folder: read, judged by all claims, and shown side by side."""

import pandas as pd
import pytest
from claim_tables import BAND, write_model, write_pair
from normgeom_lab.common.recording import record
from normgeom_lab.scale import CLAIMS, FAILS, HOLDS, MODELS, UNTOLD, ends, judged, models, observations, overview, pairs


def test_a_folder_is_judged(tmp_path):
    write_model(tmp_path, "gpt2-xl", times=(0.5, 3.0))
    write_model(tmp_path, "llama", kind="rms")
    write_pair(tmp_path, "70M")
    table = judged(tmp_path)
    assert list(table) == ["claim", "evidence", "verdict", "sentence"]
    assert table.set_index(["claim", "evidence"]).verdict.to_dict() == {
        ("after-layer", "gpt2-xl"): FAILS,
        ("exception", "gpt2-xl"): HOLDS,
        ("before-rms", "llama"): HOLDS,
        ("after-rms", "llama"): HOLDS,
        ("training-layer", "70M"): HOLDS,
        ("training-rms", "70M"): HOLDS,
        ("growth-layer", "70M"): HOLDS,
        ("growth-rms", "70M"): HOLDS,
        ("ordinary-layer", "gpt2-xl"): UNTOLD,
        ("ordinary-rms", "llama"): HOLDS,
        ("losses", "70M"): HOLDS,
        ("surface", "70M"): HOLDS,
        ("axes", "70M"): HOLDS,
    }
    assert [*dict.fromkeys(table.claim)] == [label for label in CLAIMS if label != "before-layer"], (
        "GPT-2 XL is excepted"
    )


@pytest.mark.parametrize(
    ("label", "column", "other"),
    [("after-rms", "side", "in"), ("training-rms", "norm", "layer"), ("axes", "norm", "rms")],
)
def test_a_claim_is_asked_of_its_rows_alone(tmp_path, label, column, other):
    write_model(tmp_path, "llama", kind="rms")
    write_pair(tmp_path, "70M")
    claim = CLAIMS[label]
    evidence = models(tmp_path)["llama"] if claim.needs == "model" else pairs(tmp_path)["70M"]
    table = evidence if claim.needs == "model" else getattr(evidence, claim.table)
    spoiled = [name for name in ("occupancy", "overlap") if name in table]
    table[spoiled] = table[spoiled].where(table[column] != other, float("nan"))
    assert claim.asked(evidence).verdict == HOLDS


def test_a_record_is_read_with_what_its_note_says(tmp_path):
    write_model(tmp_path, "mine")
    write_pair(tmp_path, "1B", parts=("angles", "forms"))
    mine, pair = models(tmp_path)["mine"], pairs(tmp_path)["1B"]
    assert len(mine) == 2 * 2 * 2 and mine.occupancy.max() < 60, "the first positions are left out"
    assert set(mine.high) == {BAND["high"]}, "the null is random directions, not signs"
    assert set(mine.model) == {"mine"} and set(mine.drawn) == {100}
    assert set(pair.angles.drawn) == {39} and set(pair.forms.width) == {128} and pair.loss is pair.curve is None


def test_a_record_that_lacks_something_is_refused(tmp_path):
    write_model(tmp_path, "toy")
    path = tmp_path / "angles-toy.csv"
    pd.read_csv(path).drop(columns="kind").to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"^angles-toy.csv: expected columns site side .*, got none of the name kind$"):
        judged(tmp_path)
    path.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match=r"angles-toy\.json"):
        judged(tmp_path)


def test_a_norm_without_nulls_tells_nothing(tmp_path):
    write_model(tmp_path, "toy")
    path = tmp_path / "nulls-toy.csv"
    pd.read_csv(path)[1:].to_csv(path, index=False)
    found = judged(tmp_path).set_index("claim").sentence["before-layer"]
    assert found == "Not every row has a number for median, high."


def test_records_of_the_book_are_judged():
    verdicts = judged().set_index(["evidence", "claim"]).verdict
    assert len(verdicts["1M, chapter 8"]) == 7, "every claim on pairs"
    assert verdicts["1M, chapter 8", "growth-layer"] == HOLDS, "1 is first of 40 at each seed"
    assert verdicts["all-MiniLM-L6-v2", "before-layer"] == HOLDS, "1 is below the band at most of its norms"
    assert verdicts["all-MiniLM-L6-v2", "ordinary-layer"] == FAILS


def test_models_that_are_measured_and_that_are_not(tmp_path):
    write_model(tmp_path, "gpt2-xl", times=(0.5, 3.0))
    write_model(tmp_path, "mine", kind="rms")
    table = overview(judged(tmp_path), "model")
    assert list(table.index) == [*MODELS, "mine"], "the paper's come first, in its order"
    assert list(table) == ["before", "after", "exception", "ordinary", "measured"]
    assert table.loc["gpt2-xl", ["after", "exception", "measured"]].tolist() == [FAILS, HOLDS, "yes"]
    assert pd.isna(table.loc["gpt2-xl", "before"]), "the claim excepts it"
    missing = table.loc["llama-2-7b"]
    assert missing.measured == "make scale ONLY=llama-2-7b" and missing.drop("measured").isna().all()


def test_a_pair_has_both_kinds_of_norms(tmp_path):
    write_pair(tmp_path, "5M")
    table = overview(judged(tmp_path), "pair")
    assert list(table.index) == ["70M", "160M", "410M", "1B", "5M"]
    assert table.loc["5M", ["growth-layer", "growth-rms"]].tolist() == [HOLDS, HOLDS]


def test_nothing_is_measured(tmp_path):
    assert judged(tmp_path).empty
    for needs in ("model", "pair"):
        table = overview(judged(tmp_path), needs)
        assert table.measured.str.startswith("make scale ONLY=").all() and len(table) in (4, 7)


def test_how_pairs_end(tmp_path):
    write_pair(tmp_path, "5M")
    write_pair(tmp_path, "70M", parts=("angles",))
    table = ends(pairs(tmp_path))
    assert list(table.index) == ["5M"], "without losses there is no end to tell"
    assert table.loc["5M", "along 1, RMSNorm"] == pytest.approx(0.5 * BAND["high"] / BAND["median"])
    assert table.loc["5M", "loss, LayerNorm"] == 3 and table.loc["5M", "seeds"] == 3
    of_book = ends(pairs()).loc["1M, chapter 8"]
    assert of_book["along 1, LayerNorm"] < 0.1 < of_book["along 1, RMSNorm"], "as chapter 8 finds"


def test_observations_in_units_of_their_bounds(tmp_path):
    tries = pd.DataFrame(dict(claim=["claim-a", "claim-a", "claim-b"], seed=[0, 1, 0], deviation=[0.2, 0.7, 0.1]))
    record("claims-09", tries, "w", tmp_path)
    for name, deviation in (("gpt2", 3.0), ("mine", 1.0)):
        rows = pd.DataFrame(dict(claim=["claim-a"], deviation=[deviation], bound=[2.0]))
        record(f"observed-09-{name}", rows, "w", tmp_path)
    table = observations(tmp_path)
    assert table.loc["claim-a"].to_dict() == dict(small=0.7, gpt2=1.5, mine=0.5)
    assert list(table.index) == ["claim-a"], "claim-b was judged nowhere else"
