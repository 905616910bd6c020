"""The table of times: what each step cost, and the limit of all together on this machine."""

import pytest
from click.testing import CliRunner
from press import times
from press.book import Book
from press.cli import main
from press.times import above, costs, table

STEPS = {"01-mean", "02-angle", "appendix/errata", "pages"}


def with_limit(copy, seconds):
    with open(copy / "pyproject.toml", "a", encoding="utf-8") as file:
        file.write(f"\n[tool.press.seconds]\nbook = {seconds}\n")
    return above(Book(copy), "book")


def test_every_step_is_timed_and_an_unfinished_one_left_out(copy):
    (copy / "_build/times/book/slow").touch()
    found = costs(Book(copy), "book")
    assert set(found) == STEPS
    for name, (processor, wall) in found.items():
        assert 0 < processor < 100 and 0 < wall < 300, f"{name}: user, system and wall seconds mixed up?"
    rows = [float(line.split()[1]) for line in list(table(Book(copy), "book"))[1:]]
    assert abs(sum(rows[:-1]) - rows[-1]) <= len(STEPS), "all is not the sum"


def test_a_slower_machine_has_a_larger_limit(copy, monkeypatch):
    seconds = sum(processor for processor, _ in costs(Book(copy), "book").values())
    monkeypatch.setattr(times, "calibration", lambda: times.REFERENCE)
    assert with_limit(copy, seconds / 2) and "all together" in above(Book(copy), "book")[0]
    monkeypatch.setattr(times, "calibration", lambda: 3 * times.REFERENCE)
    assert not above(Book(copy), "book")


@pytest.mark.parametrize(("ci", "status"), [("1", 1), ("", 0)])
def test_a_budget_fails_ci_and_not_a_desk(copy, monkeypatch, ci, status):
    with_limit(copy, 0)
    monkeypatch.setenv("CI", ci)
    result = CliRunner().invoke(main, ["--root", str(copy), "times", "book"])
    assert result.exit_code == status and "all together" in result.output
