"""All claims asked of a folder of records."""

import re

import numpy as np
import pytest
from claim_tables import write_model, write_pair
from normgeom.claims import CLAIMS, FAILS, HOLDS, UNTOLD, judged
from normgeom.claims.columns import Kind, kind_of


def test_a_folder_is_judged(tmp_path):
    write_model(tmp_path, "gpt2-xl", times=(0.5, 3.0))
    write_model(tmp_path, "llama", kind="rms")
    write_pair(tmp_path, "70M")
    table = judged(tmp_path)
    assert list(table) == ["claim", "evidence", "verdict", "number", "null", "spread", "sentence"]
    found = table.set_index(["claim", "evidence"]).verdict.to_dict()
    assert found == {
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


def test_a_folder_without_evidence_has_no_rows(tmp_path):
    assert judged(tmp_path).empty and "verdict" in judged(tmp_path)


def test_records_of_the_book_are_judged():
    table = judged()
    assert set(table.verdict) <= {HOLDS, FAILS, UNTOLD} and not table.duplicated(["claim", "evidence"]).any()
    of_book = table.set_index(["evidence", "claim"])
    assert len(of_book.loc["1M, chapter 8"]) == 7, "every claim on pairs"
    assert of_book.verdict["1M, chapter 8", "growth-layer"] == HOLDS, "1 is first of 40 at each seed"
    assert of_book.verdict["all-MiniLM-L6-v2", "before-layer"] == HOLDS, "1 is below the band at most of its norms"
    assert of_book.verdict["all-MiniLM-L6-v2", "ordinary-layer"] == FAILS
    told = table[table.verdict != UNTOLD]
    assert np.isfinite(told[["number", "null"]].astype(float)).all(axis=None)
    low, high = map(np.array, zip(*told.spread, strict=True))
    assert (low <= high).all() and (told.sentence.str.endswith(".")).all()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_says_where_it_stands_and_asks_for_what_records_have(claim):
    assert CLAIMS[claim.label] is claim and claim.words.endswith(".") and re.search("paper|note", claim.source)
    name = {"model": "angles-x", "pair": "pair-x-angles"}[claim.needs]
    kind = kind_of(name)
    assert isinstance(kind, Kind)
    for column, value in claim.of.items():
        assert column == "model" or value in kind.columns[column].words
