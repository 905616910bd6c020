"""The minutes of a page: what counts as a word, where counting ends, and how it is rounded."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from press.minutes import minutes, words

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


def cells(*texts):
    return [new_markdown_cell(text) for text in texts]


def test_words_are_counted_by_hand():
    # Two words; Three plain words, and $x y$ inline.; A head; two formulas; :::{prf:theorem} Its name; a b
    assert words(cells(PAGE)) == 2 + 7 + 2 + 2 * 10 + 3 + 2


def test_code_cells_are_left_out():
    assert words([*cells("one two"), new_code_cell("three = four"), *cells("five")]) == 3


def test_counting_ends_at_the_exercises():
    assert words(cells("one two\n\n## Exercises\n\nthree", "four")) == 2
    assert words(cells("one two", "## Exercises\n\nthree", "four five")) == 2, "the exercises begin a cell of their own"
    assert words(cells("one\n\n### Exercises\n\ntwo")) == 3, "not the section of exercises"


@pytest.mark.parametrize(
    ("count", "expected"), [(1, 5), (970, 5), (980, 10), (130 * 30, 30), (130 * 32, 30), (130 * 33, 35)]
)
def test_minutes_are_rounded_to_five_and_at_least_five(count, expected):
    assert minutes(cells("word " * count)) == expected
