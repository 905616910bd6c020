"""The table of times: what each step cost, and which is above its share."""

import re

from press.book import Book
from press.times import costs, table

STEPS = {"01-mean", "02-angle", "appendix/errata", "pages"}


def with_shares(copy, book):
    with open(copy / "pyproject.toml", "a", encoding="utf-8") as file:
        file.write(f"\n[tool.press.seconds]\nbook = {{ {book} }}\n")
    return list(table(Book(copy), "book"))


def test_every_step_is_timed(book):
    found = costs(book, "book")
    assert {cost.name for cost in found} == STEPS
    for cost in found:
        assert 0 < cost.processor < 100 and 0 < cost.wall < 300, f"{cost}: user, system and wall seconds mixed up?"


def test_make_ends_with_the_table(copy):
    lines = list(table(Book(copy), "book"))
    assert [line.split()[0] for line in lines] == ["seconds", *sorted(STEPS), "all"]
    rows = [float(line.split()[1]) for line in lines[1:]]
    assert abs(sum(rows[:-1]) - rows[-1]) <= len(STEPS), "all is not the sum"


def test_a_chapter_above_its_share_is_named_with_its_cells(copy):
    lines = with_shares(copy, 'each = 99, "01-mean" = 0, all = 999')
    named = [line for line in lines if "above" in line]
    assert len(named) == 1
    assert re.fullmatch(
        r"01-mean is above its share of 0 processor seconds: (cell \d+ takes \d+ s(, )?)+ \(on the wall\)", named[0]
    )


def test_the_sum_above_its_share_is_named(copy):
    assert with_shares(copy, "each = 99, all = 1")[-1] == "all together is above 1 processor seconds"


def test_nothing_ran(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'toy'\n")
    assert list(table(Book(tmp_path), "test"))[-1].split() == ["all", "0"]


def test_a_step_that_is_still_running_is_left_out(copy):
    (copy / "_build/times/book/slow").touch()
    assert {cost.name for cost in costs(Book(copy), "book")} == STEPS
