"""Minutes to read a page, by one rule: words before the exercises, without code, at 130 a minute, to the nearest 5.

A displayed formula counts as ten words.  The rule knows nothing of how hard a page is; that it is the same for all
pages is its merit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import nbformat

WORDS_A_MINUTE, WORDS_A_FORMULA, STEP = 130, 10, 5
EXERCISES = re.compile(r"^## Exercises$", re.M)
FORMULA = re.compile(r"^```\{math\}.*?^```$|\$\$.*?\$\$", re.M | re.S)
CODE = re.compile(r"^```(?!\{)\w*\n.*?^```$", re.M | re.S)
MARKUP = re.compile(r"^(?::(?:label|class|name|alt):.*|\(.*\)=)$", re.M)
WORD = re.compile(r"\S*\w\S*")


def words(cells: Iterable[nbformat.NotebookNode]) -> int:
    """How many words stand in a page's Markdown cells before the exercises."""
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = EXERCISES.split(text)[0]
    text, formulas = FORMULA.subn("", text)
    return len(WORD.findall(MARKUP.sub("", CODE.sub("", text)))) + WORDS_A_FORMULA * formulas


def minutes(cells: Iterable[nbformat.NotebookNode]) -> int:
    """Minutes to read a page, a multiple of 5 and at least 5."""
    return max(STEP, STEP * round(words(cells) / WORDS_A_MINUTE / STEP))
