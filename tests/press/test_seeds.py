"""Claims at many seeds: which need them, when a record no longer speaks of its claim, and what is amiss with one."""

import re

import pytest
from press.book import Book
from press.cells import Cell
from press.refusals import claim_untried, measured_when
from press.seeds import Live, Tried, amiss, is_recorded, live, tried, version

PARAMETERS = Cell({"tags": ["parameters"]}, "d: int = 4  # length\nseed: int = 0")
RUNS = Cell({}, "runs = train(d)")
PLOT = Cell({}, "plot(runs)")
CHECK = Cell({"verifies": ["claim-a"]}, "ng.verify('claim-a', max(runs), 1, 0.1)")
CHAPTER = [PARAMETERS, RUNS, PLOT, CHECK]
GOOD = Tried(seeds=20, held=20, deviation=0.7, mutant=3.0, version="v")
CLAIM = Live("claim-a", "a", "v")
AMISS = {
    "no record": (CLAIM, None, "", "was tried at 0 seeds, not 20"),
    "few seeds": (CLAIM, GOOD._replace(seeds=19), "", "was tried at 19 seeds, not 20"),
    "another version": (CLAIM, GOOD._replace(version="w"), "", "but its cells have changed"),
    "silence": (CLAIM, GOOD._replace(held=18, deviation=1.2), "Always.", "held in 18 of 20 seeds, but its statement"),
    "no room": (CLAIM, GOOD._replace(deviation=0.81), "", "uses 81% of its bound"),
    "half the bound": (CLAIM, GOOD._replace(held=3, deviation=1.4, mutant=6.0), "", "held in 3 of 20 seeds"),
    "a mutant that comes near": (CLAIM, GOOD._replace(mutant=1.2), "", "near miss that deviates by only 1.20"),
}


def replaced(old, new):
    return [Cell(c.head, c.code.replace(old, new)) for c in CHAPTER]


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.1", "0.2"), ("train(d)", "train(2 * d)"), ("int = 4", "int = 5")],
    ids=["the check", "what makes what it uses", "a parameter"],
)
def test_what_a_claim_rests_on_is_its_version(old, new):
    assert version(replaced(old, new), "claim-a") != version(CHAPTER, "claim-a")


@pytest.mark.parametrize(("old", "new"), [("plot(runs)", "draw(runs)"), ("# length", "# width"), ("seed: int = 0", "")])
def test_what_it_does_not_rest_on_is_not(old, new):
    assert version(replaced(old, new), "claim-a") == version(CHAPTER, "claim-a")


def test_a_claim_is_recorded_where_a_cell_behind_it_reads_a_record():
    read = Cell({}, "runs = ng.recorded('runs').table")
    assert not is_recorded(CHAPTER, 3)
    assert is_recorded([PARAMETERS, read, CHECK], 2)


@pytest.mark.parametrize("case", AMISS)
def test_what_is_amiss(case):
    claim, found, statement, words = AMISS[case]
    (message,) = amiss(claim, found, statement)
    assert words in message


def test_nothing_is_amiss():
    assert not list(amiss(CLAIM, GOOD, ""))
    assert not list(amiss(CLAIM, GOOD._replace(held=18, deviation=1.2), "So it is in 18 of 20 seeds."))


def test_the_record_of_a_book(book):
    assert [claim.label for claim in live(book)] == ["claim-right"]
    found = tried(book)["claim-right"]
    assert (found.seeds, found.held, found.deviation, found.mutant) == (20, 20, 0.69, 71)


def spoil(copy, old, new):
    path = copy / "chapters/02-angle.md"
    text = re.sub(old, new, path.read_text("utf-8"))
    assert text != path.read_text("utf-8")
    path.write_text(text, "utf-8")
    return Book(copy)


def test_the_build_refuses(copy):
    (message,) = claim_untried(spoil(copy, "all vectors alike 9", "all vectors equal 9"), None)
    assert message == "02-angle: claim-right was tried at many seeds, but its cells have changed (make experiments)"
    (message,) = measured_when(spoil(copy, "eight toy vectors", "eight recorded vectors"), None)
    assert message.endswith("measured-on says recorded, but it is a live run")
