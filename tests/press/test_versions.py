"""What was tried with what: rows that commands write, and their page."""

from datetime import UTC, datetime
from importlib import metadata

import pytest
from press.versions import COMMANDS, FILE, keep, note, tried, versions


@pytest.fixture
def noted(copy, book):
    """The toy book with a row that is old and one that is new."""
    book = type(book)(copy)
    note(book, "make test", "as it was")
    note(book, "make newest", "all pages")
    keep(book)
    note(book, "make test", "as it is")
    keep(book)
    return book


def test_a_row_replaces_that_of_its_command(noted):
    assert [(row["command"], row["outcome"]) for row in tried(noted)] == [
        ("make test", "as it is"),
        ("make newest", "all pages"),
    ]


def test_a_row_has_the_date_and_the_versions_of_where_it_runs(noted):
    row = tried(noted)[1]
    assert row["date"] == datetime.now(UTC).date().isoformat()
    assert f"Sphinx {metadata.version('sphinx')}" in row["packages"]


def test_a_command_that_ends_leaves_the_book_as_it_is(noted):
    before = (noted.root / FILE).read_bytes()
    note(noted, "make newest", "other pages")
    assert (noted.root / FILE).read_bytes() == before, "a test run would change a tracked file"


def test_the_page_has_a_row_a_command_and_says_which_are_empty(noted):
    page = versions(noted)
    rows = {
        command: next(line for line in page.splitlines() if line.startswith(f"| `{command}`")) for command in COMMANDS
    }
    assert {command for command, row in rows.items() if row.endswith("| not recorded |")} == (
        COMMANDS.keys() - {"make test", "make newest"}
    )
    assert "as it is" in rows["make test"]


def test_the_page_quotes_the_pins(noted):
    constraints = (noted.root / "constraints.txt").read_text("utf-8")
    pin = next(line for line in constraints.splitlines() if line.startswith("torch=="))
    assert pin.replace("==", " ") in versions(noted)
