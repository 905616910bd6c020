"""Records as evidence: what is read of them, and what is refused with which words."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from claim_tables import BAND, write_model, write_pair
from normgeom.claims import check_record, models, pairs
from normgeom.claims.columns import kind_of
from normgeom.records import FOLDER


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path, "toy")
    write_pair(tmp_path, "70M")
    return tmp_path


def put(column, value, line=3):
    """Another value in one line of the file, the first of which has the columns' names."""

    def damage(table):
        cells = table[column].astype(object)
        cells.iloc[line - 2] = value
        return table.assign(**{column: cells})

    return damage


TABLES = [
    ("angles-toy", lambda t: t.drop(columns="std_deg"), r"std_deg: expected a column, got only site, side"),
    ("angles-toy", lambda t: t.assign(cos=0.5), r"cos: expected no such column, got one beside site, side"),
    ("angles-toy", lambda t: t[:0], r"table: expected at least one row, got none"),
    ("angles-toy", put("occupancy", None), r"occupancy: expected no empty cell, got nan in line 3"),
    ("angles-toy", put("drop_error", None, 5), r"drop_error: expected no empty cell, got nan in line 5"),
    ("angles-toy", put("mean_deg", "ninety", 4), r"mean_deg: expected a number, got ninety in line 4"),
    ("angles-toy", put("tokens", 12.5), r"tokens: expected a whole number, got 12.5 in line 3"),
    ("angles-toy", put("tokens", 0), r"tokens: expected a number from 1 to inf, got 0 in line 3"),
    ("angles-toy", lambda t: t.assign(site=7), r"site: expected a text in each cell, got int64"),
    ("angles-toy", lambda t: t.assign(dim=64.0), r"dim: expected a whole number in each cell, got float64"),
    ("angles-toy", lambda t: t.assign(tokens=True), r"tokens: expected a whole number in each cell, got bool"),
    ("angles-toy", put("mean_deg", 190.5), r"mean_deg: expected a number from 0 to 180, got 190.5 in line 3"),
    ("angles-toy", put("std_deg", -1.5), r"std_deg: expected a number from 0 to 180, got -1.5 in line 3"),
    ("angles-toy", put("mean_norm", np.inf), r"mean_norm: expected a number from 0 to inf, got inf in line 3"),
    ("angles-toy", put("occupancy", 65), r"occupancy: expected at most dim, got 65.0 in line 3"),
    ("angles-toy", put("occupancy", -0.1), r"occupancy: expected a number from 0 to inf, got -0.1 in line 3"),
    ("angles-toy", put("q05_deg", 95.5), r"q05_deg: expected at most q50_deg, got 95.5 in line 3"),
    ("angles-toy", put("kind", "batch"), r"kind: expected one of layer, rms, got batch in line 3"),
    ("angles-toy", put("positions", "last"), r"positions: expected one of first, rest, all, got last in line 3"),
    ("angles-toy", lambda t: t[t.direction != "uniform"], r"direction: expected rows with uniform, got none"),
    ("angles-toy", lambda t: pd.concat([t, t[2:3]]), r"positions: expected each combination once, got one again in l"),
    ("angles-toy", lambda t: t[t.side == "in"], r"site, side: .* those of nulls-toy.csv, got h.0.ln out in one"),
    ("nulls-toy", put("median", 2), r"median: expected at most high, got 2.0 in line 3"),
    (
        "nulls-toy",
        lambda t: t.replace("h.1.ln", "h.9.ln"),
        r"site, side: expected those of angles-toy.csv, got h.1.ln in",
    ),
    ("nulls-toy", lambda t: t[t.null != "random_"], r"null: expected rows with random_, got none"),
    ("pair-70M-angles", put("norm", "batch"), r"norm: expected one of layer, rms, got batch in line 3"),
    ("pair-70M-angles", lambda t: t[t.norm == "rms"], r"norm: expected rows with layer, got none"),
    ("pair-70M-angles", put("low", 1.4), r"low: expected at most median, got 1.4 in line 3"),
    ("pair-70M-loss", lambda t: t.assign(seed=0), r"norm, seed: expected each combination once, got one again in l"),
    ("pair-70M-curve", put("step", -1), r"step: expected a number from 0 to inf, got -1 in line 3"),
    ("pair-70M-forms", put("overlap", 1.5), r"overlap: expected a number from 0 to 1, got 1.5 in line 3"),
]


@pytest.mark.parametrize(("name", "damage", "said"), TABLES)
def test_a_damaged_table_is_refused(folder, name, damage, said):
    path = folder / f"{name}.csv"
    check_record(path)
    damage(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(ValueError, match=f"^{name}.csv: .*{said}"):
        check_record(path)
    with pytest.raises(ValueError, match=rf"^({name}|angles-toy).csv: "):
        (pairs if name.startswith("pair") else models)(folder)


NOTES = [
    (dict(versions=None), "versions: expected that of torch among them, got none; .* write it again by the command"),
    (
        dict(versions="numpy 2.4"),
        "versions: expected that of torch among them, got numpy 2.4; it is of another version",
    ),
    (dict(corpus=None), "provenance: expected what, model, .*, got nothing for corpus$"),
    (dict(command=""), "provenance: expected what, model, .*, got nothing for command$"),
    (dict(seed=None), "provenance: expected seed or seeds, got only what, model, corpus"),
]


@pytest.mark.parametrize(("change", "said"), NOTES)
def test_a_note_that_says_too_little_is_refused(folder, change, said):
    note = folder / "angles-toy.json"
    words = {**json.loads(note.read_text("utf-8")), **change}
    note.write_text(json.dumps({name: word for name, word in words.items() if word is not None}), "utf-8")
    with pytest.raises(ValueError, match=f"^angles-toy.json: {said}"):
        check_record(folder / "angles-toy.csv")


def test_what_is_no_record_is_refused(folder):
    (folder / "angles-toy.json").write_text("{", "utf-8")
    with pytest.raises(ValueError, match=r"angles-toy.json: provenance: expected JSON, got Expecting property"):
        check_record(folder / "angles-toy.csv")
    (folder / "angles-toy.json").write_text("[]", "utf-8")
    with pytest.raises(ValueError, match=r"angles-toy.json: provenance: expected names and values, got list"):
        check_record(folder / "angles-toy.csv")
    (folder / "pair-70M-loss.csv").write_text('a,b\n1,2\n3,4,5\n"', "utf-8")
    with pytest.raises(ValueError, match=r"pair-70M-loss.csv: table: expected comma-separated values, got"):
        check_record(folder / "pair-70M-loss.csv")
    (folder / "angles-toy.json").unlink()
    with pytest.raises(
        ValueError, match=r"expected angles-toy.csv and angles-toy.json beside it, got no angles-toy.json"
    ):
        check_record(folder / "angles-toy.csv")


def test_a_record_that_no_claim_is_judged_from_is_refused(folder):
    (folder / "gains-toy.csv").write_text("a\n1\n", "utf-8")
    with pytest.raises(ValueError, match=r"gains-toy.csv: name: expected one of angles-.*, got 'gains-toy'"):
        check_record(folder / "gains-toy.csv")


@pytest.mark.parametrize(("here", "there"), [("angles", "nulls"), ("nulls", "angles")])
def test_angles_and_nulls_come_together(folder, here, there):
    (folder / f"{there}-toy.csv").unlink()
    for refuse in (lambda: check_record(folder / f"{here}-toy.csv"), lambda: models(folder)):
        with pytest.raises(
            ValueError, match=f"expected {there}-toy.csv and {there}-toy.json .*, got no {there}-toy.csv"
        ):
            refuse()


def test_a_record_of_another_model_is_refused(folder):
    for ending in ("csv", "json"):
        for part in ("angles", "nulls"):
            (folder / f"{part}-toy.{ending}").rename(folder / f"{part}-gpt2-xl.{ending}")
    with pytest.raises(
        ValueError,
        match=r"angles-gpt2-xl.csv: model: expected openai-community/gpt2-xl, as the file is called, got toy",
    ):
        models(folder)


@pytest.mark.parametrize("about", ["corpus", "seed"])
def test_angles_and_nulls_of_another_run_are_refused(folder, about):
    note = folder / "nulls-toy.json"
    note.write_text(json.dumps(json.loads(note.read_text("utf-8")) | {about: "9"}), "utf-8")
    with pytest.raises(ValueError, match=f"angles-toy.csv: {about}: expected that of nulls-toy.csv, 9, got"):
        check_record(folder / "angles-toy.csv")


def test_a_model_is_read_with_its_random_null(folder):
    write_model(folder, "mine", kind="rms")
    nulls = pd.read_csv(folder / "nulls-mine.csv")
    nulls.loc[nulls.null == "signs_", "high"] = 99.0
    nulls.loc[(nulls.null == "random_") & (nulls.side == "out"), "high"] = 7.0
    nulls.to_csv(folder / "nulls-mine.csv", index=False)
    found = models(folder)
    assert list(found) == ["mine", "toy"]
    mine = found["mine"]
    assert len(mine) == 2 * 2 * 3 and set(mine.positions) == {"rest"}
    assert set(mine.high[mine.side == "in"]) == {BAND["high"]} and set(mine.high[mine.side == "out"]) == {7.0}
    assert set(mine.model) == {"mine"} and set(mine.drawn) == {100} and "drop_error" not in mine
    assert mine.attrs["provenance"]["nulls"]["corpus"] == "words"


def test_a_pair_is_read_with_what_there_is_of_it(folder):
    write_pair(folder, "1B", parts=("angles", "loss"))
    found = pairs(folder)
    assert set(found) == {"1B", "70M"}
    assert found["1B"].forms is None and found["1B"].curve is None and set(found["1B"].angles.drawn) == {39}
    assert set(found["1B"].provenance) == {"angles", "loss"} and len(found["70M"].curve) == 10


def test_records_of_the_book_are_evidence():
    judged = [path for path in FOLDER.glob("*.csv") if kind_of(path.stem)]
    assert len(judged) >= 6
    for path in judged:
        assert len(check_record(path).table)
    assert "1M, chapter 8" in pairs() and "all-MiniLM-L6-v2" in models()


def test_names_tell_kinds():
    assert kind_of("angles-gpt2-xl") and kind_of("nulls-x") and kind_of("pair-0.2M-forms") and kind_of("training-loss")
    assert not any(map(kind_of, ["training-ranks", "pair-70M-gains", "pair--loss", "angles-", "claims-02"]))
    assert re.search("drop_error", " ".join(kind_of("angles-x").columns))


def test_seeds_that_were_measured_at_other_places_are_refused(tmp_path):
    write_pair(tmp_path, "5M")
    path = tmp_path / "pair-5M-angles.csv"
    table = pd.read_csv(path)
    table[(table.seed != 1) | (table.step < 600)].to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"^pair-5M-angles.csv: step, site: expected the same at each seed"):
        pairs(tmp_path)


def test_an_occupancy_below_what_its_cosines_allow_is_refused(folder):
    path = folder / "angles-toy.csv"
    table = pd.read_csv(path)
    table.loc[3, "mean_abs_cos"] = 0.9
    table.to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"^angles-toy.csv: occupancy: expected at least dim·mean_abs_cos², got .* 5$"):
        models(folder)
