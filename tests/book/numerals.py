"""List numbers in the prose that no cell computes or prints: ``python tests/book/numerals.py [CHAPTER …]``.

A number is found if one of the chapter's code or outputs, or a hundred times it, rounds to it.
What is left comes from arithmetic in the text, from a source, or is out of date: read it.
"""

import re
import sys
from pathlib import Path

import numpy as np
from press.book import Book, Page

NUMBER = re.compile(r"(?<![\w.\\{-])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w.]*\d)")
LEFT_OUT = re.compile(r"(?s:```.*?```)|\{[\w:]+\}`[^`]*`|https?://\S+|^:.*$|\]\(\S+\)", re.M)
SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\n")


def computed(page: Page) -> list[float]:
    """All numbers in the code of a page, and in what it prints, tables and alternative texts, also as percentages."""
    found = []
    for cell in (cell for cell in page.cells if cell.cell_type == "code"):
        texts = [cell.source]
        for output in cell.outputs:
            data = output.get("data", {})
            texts += [output.get("text", ""), data.get("text/markdown", ""), data.get("text/plain", "")]
            texts.append(output.get("metadata", {}).get("alt", ""))
        found += [float(n.replace(",", "")) for text in texts for n in NUMBER.findall(text)]
    return [*found, *(100 * n for n in found)]


def unexplained(text: str, known: np.ndarray) -> list[str]:
    """Numbers with a decimal point, or above 20 and no year, to which no known one rounds."""
    left = []
    for number in NUMBER.findall(text):
        value, digits = float(number.replace(",", "")), len(number.partition(".")[2])
        near = known[np.searchsorted(known, value - 1) : np.searchsorted(known, value + 1, "right")]
        plain = not digits and (value <= 20 or 1950 < value < 2030)
        if not plain and value not in np.round(near, digits):
            left.append(number)
    return left


if __name__ == "__main__":
    book = Book(Path())
    for page in book.notebooks:
        if not sys.argv[1:] or page.name in sys.argv[1:]:
            known = np.unique(computed(page))
            prose = "\n\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")
            for sentence in SENTENCE.split(LEFT_OUT.sub("", prose)):
                if left := unexplained(sentence, known):
                    print(f"{page.name}: {', '.join(left)}: {' '.join(sentence.split())[:160]}")
