"""The count of code in the chapters, and of words, against what is meant."""

import pytest
from click.testing import CliRunner
from nbformat.v4 import new_code_cell, new_markdown_cell
from press.book import Book
from press.cli import main
from press.lines import counts, minutes, too_long, words
from toybook import edit

MEANT = dict(chapter=99, check=99, words=999)
PAGE = """\
# Two words

Three plain words, and $x + y$ inline.

(sec-here)=
## A head

```{math}
:label: eq-one
a = b + c + d
```

$$
e = f
$$

:::{prf:theorem} Its name
:label: thm-one
| a | b |
| --- | --- |
:::

```bash
make book now
```
"""


def limited(copy, **changes):
    limits = "".join(f"{key} = {value}\n" for key, value in {**MEANT, **changes}.items())
    with open(copy / "pyproject.toml", "a", encoding="utf-8") as file:
        file.write(f"\n[tool.press.lines]\n{limits}")
    return list(too_long(Book(copy)))


def test_cells_are_counted_with_their_blank_lines(book):
    mean = next(page for page in book.pages if page.name == "01-mean")
    assert counts(mean) == [2, 4, 5, 3] and counts(mean, "check") == [4]


def test_each_limit_is_named(copy):
    found = limited(copy, chapter=13, check=3, words=20)
    assert "01-mean: 14 lines of code; the limit is 13" in found
    assert any(line.startswith("a check of 01-mean: ") for line in found)
    assert any(line.startswith("01-mean: ") and "words before its exercises; the limit is 20" in line for line in found)


def test_a_takeaway_is_one_sentence(copy):
    takeaways = "## Takeaways\n\n- One sentence\n  on two lines, of $x.$\n- Of two. It ends here."
    more = [new_markdown_cell(takeaways), new_markdown_cell("## What comes next")]
    edit(copy, "01-mean", lambda notebook: notebook.cells.extend(more))
    (found,) = limited(copy)
    assert found.startswith("01-mean: a takeaway must be one sentence: Of two. It ends")


def test_press_check_fails_above_a_limit_and_not_below(copy):
    assert limited(copy) == [] and CliRunner().invoke(main, ["--root", str(copy), "check"]).exit_code == 0
    text = (copy / "pyproject.toml").read_text("utf-8")
    (copy / "pyproject.toml").write_text(text.replace("check = 99", "check = 3"), "utf-8")
    result = CliRunner().invoke(main, ["--root", str(copy), "check"])
    assert result.exit_code == 1 and "refused: a check of 01-mean: 4 lines; the limit is 3" in result.output


def cells(*texts):
    return [new_markdown_cell(text) for text in texts]


def test_words_are_counted_by_hand_code_and_exercises_left_out():
    # Two words; Three plain words, and $x y$ inline.; A head; two formulas; :::{prf:theorem} Its name; a b
    assert words(cells(PAGE)) == 2 + 7 + 2 + 2 * 10 + 3 + 2
    assert words([*cells("one two"), new_code_cell("three = four"), *cells("five")]) == 3
    assert words(cells("one two", "## Exercises\n\nthree", "four five")) == 2
    assert words(cells("one\n\n### Exercises\n\ntwo")) == 3, "not the section of exercises"


@pytest.mark.parametrize(("count", "expected"), [(1, 5), (740, 5), (760, 10), (100 * 32, 30), (100 * 33, 35)])
def test_minutes_are_rounded_to_five_and_at_least_five(count, expected):
    assert minutes(cells("word " * count)) == expected
