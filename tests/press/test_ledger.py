"""The ledger page."""

from press.ledger import ledger
from press.stage import stage


def rows(book):
    table = [line for line in ledger(book).splitlines() if line.startswith('| <span id="row-')]
    return {row.split("`")[1]: row for row in table}


def test_every_checked_or_open_label_has_a_row(book):
    assert list(rows(book)) == [
        "eq-mean",
        "eq-short",
        "thm-mean",
        "eq-shorter",
        "claim-right",
        "conj-always",
        "eq-wrong",
    ]


def test_a_row_says_what_vouches_for_the_statement(book):
    assert rows(book)["eq-short"] == (
        '| <span id="row-eq-short"></span>{eq}`eq-short` '
        "| checked numerically |  | `ng.center`, `ng.secular.mean` | the mean \\| forgotten "
        "| error ≤ 1e-12 against 3e-02 | {ref}`cell 3 <check-01-mean-3>` |"
    )


def test_a_claim_says_at_how_many_seeds_it_held(book):
    assert rows(book)["claim-right"].split(" | ")[2] == "20 of 20, 69%"


def test_the_page_keeps_its_words_and_takes_the_table(book):
    page = stage(book)["chapters/appendix/ledger.md"].decode()
    assert page == f"# The ledger\n\nWhat is stated.\n\n{ledger(book)}\n"
