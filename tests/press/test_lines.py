"""The count of code in the chapters, against what is meant."""

import pytest
from click.testing import CliRunner
from press.book import Book
from press.cli import main
from press.lines import counts, table, too_long

MEANT = dict(all=99, chapter=99, longest=99, median=99, checks=99, check=99)


def limited(copy, **changes):
    limits = "".join(f"{key} = {value}\n" for key, value in {**MEANT, **changes}.items())
    with open(copy / "pyproject.toml", "a", encoding="utf-8") as file:
        file.write(f"\n[tool.press.lines]\n{limits}")
    return list(too_long(Book(copy)))


def test_cells_are_counted_with_their_blank_lines(book):
    mean = next(count for count in counts(book) if count.name == "01-mean")
    assert mean.cells == [2, 4, 5, 3] and mean.checks == [4]


def test_the_table_ends_with_the_sum_over_chapters(book):
    rows = [line.split() for line in table(book)]
    assert rows[1] == ["01-mean", "4", "14", "4", "3.5", "5"]
    assert rows[-1][0] == "chapters"
    chapters = [row for row in rows[1:-1] if row[0][0].isdigit()]
    assert len(chapters) < len(rows) - 2, "the toy's errata has code too"
    for column in (1, 2, 3):
        assert sum(int(row[column]) for row in chapters) == int(rows[-1][column])


def test_what_is_meant_is_kept(copy):
    assert limited(copy) == []


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (dict(all=14), "all chapters: "),
        (dict(chapter=13), "01-mean: 14 lines of code, at most 13 are meant"),
        (dict(checks=4), "all checks: "),
        (dict(median=1), "the median cell: "),
        (dict(longest=4), "the longest cell of 01-mean: 5 lines"),
        (dict(check=3), "the longest check of 01-mean: 4 lines"),
    ],
    ids=str,
)
def test_each_limit_is_named(copy, limit, message):
    assert [line for line in limited(copy, **limit) if line.startswith(message)]


def test_the_command_fails_above_a_limit(copy):
    limited(copy, longest=4)
    result = CliRunner().invoke(main, ["--root", str(copy), "lines"])
    assert result.exit_code == 1 and "the longest cell of 01-mean: 5 lines of code, at most 4" in result.output
