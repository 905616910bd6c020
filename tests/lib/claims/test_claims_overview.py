"""Verdicts side by side, and observations on other networks in units of their bounds."""

import numpy as np
import pandas as pd
import pytest
from claim_tables import write_model, write_pair
from normgeom.claims import FAILS, HOLDS, ends, judged, observations, overview, pairs
from normgeom.claims.columns import HUB
from normgeom.records import record

ABOUT = dict(model="m", corpus="c", seed=0)


def test_what_is_measured_and_what_is_not(tmp_path):
    write_model(tmp_path, "gpt2-xl", times=(0.5, 3.0))
    write_model(tmp_path, "mine", kind="rms")
    table = overview(judged(tmp_path), "model")
    assert list(table.index) == [*HUB, "mine"], "the paper's come first, in its order"
    assert list(table) == ["before", "after", "exception", "ordinary", "measured"]
    assert table.loc["gpt2-xl", ["after", "exception", "measured"]].tolist() == [FAILS, HOLDS, "yes"]
    assert pd.isna(table.loc["gpt2-xl", "before"]), "the claim excepts it"
    assert table.loc["mine", "before"] == HOLDS and pd.isna(table.loc["mine", "exception"])
    missing = table.loc["llama-2-7b"]
    assert missing.measured == "make scale ONLY=llama-2-7b" and missing.drop("measured").isna().all()


def test_a_pair_has_both_kinds_of_norms(tmp_path):
    write_pair(tmp_path, "5M")
    table = overview(judged(tmp_path), "pair")
    assert list(table.index) == ["70M", "160M", "410M", "1B", "5M"]
    assert table.loc["5M", ["growth-layer", "growth-rms"]].tolist() == [HOLDS, HOLDS]
    assert table.loc["1B", "measured"] == "make scale ONLY=1B"


def test_how_pairs_end(tmp_path):
    write_pair(tmp_path, "5M")
    write_pair(tmp_path, "70M", parts=("angles",))
    table = ends(pairs(tmp_path))
    assert list(table.index) == ["5M"], "without losses there is no end to tell"
    found = pairs(tmp_path)["5M"]
    last = found.angles.query("direction == 'uniform' and site == 'ln_f' and step == 600 and norm == 'rms'")
    assert table.loc["5M", "along 1, RMSNorm"] == pytest.approx((last.occupancy / last["median"]).median())
    assert table.loc["5M", "loss, LayerNorm"] == pytest.approx(found.loss.query("norm == 'layer'").loss.mean())
    assert table.loc["5M", "seeds"] == 3
    of_book = ends(pairs()).loc["1M, chapter 8"]
    assert of_book["along 1, LayerNorm"] < 0.1 < of_book["along 1, RMSNorm"], "as chapter 8 finds"


def test_nothing_is_measured(tmp_path):
    for needs in ("model", "pair"):
        table = overview(judged(tmp_path), needs)
        assert table.measured.str.startswith("make scale ONLY=").all() and len(table) in (4, 7)


def test_observations_in_units_of_their_bounds(tmp_path):
    tries = pd.DataFrame(dict(claim=["claim-a", "claim-a", "claim-b"], seed=[0, 1, 0], deviation=[0.2, 0.7, 0.1]))
    record("claims-09", tries, "w", tmp_path, **ABOUT)
    for name, deviation in (("gpt2", 3.0), ("mine", 1.0)):
        rows = pd.DataFrame(dict(claim=["claim-a"], deviation=[deviation], bound=[2.0]))
        record(f"observed-09-{name}", rows, "w", tmp_path, **ABOUT)
    table = observations(tmp_path)
    assert table.loc["claim-a"].to_dict() == dict(small=0.7, gpt2=1.5, mine=0.5)
    assert list(table.index) == ["claim-a"], "claim-b was judged nowhere else"


def test_a_malformed_observation_is_refused(tmp_path):
    rows = pd.DataFrame(dict(claim=["claim-a"], deviation=[np.nan], bound=[2.0]))
    record("observed-09-x", rows, "w", tmp_path, **ABOUT)
    with pytest.raises(ValueError, match=r"^observed-09-x.csv: deviation: expected no empty cell"):
        observations(tmp_path)
