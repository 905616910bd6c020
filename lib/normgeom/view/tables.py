"""Tables with rounded numbers, and a folded note on how a measurement was recorded."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

import numpy as np
import pandas as pd
from IPython.display import display

from normgeom.records import Record

_MARKUP = re.compile(r"[\\`*$\[\]<>&|~]|(?<![^\W_])_")  # an underscore after a letter starts no emphasis
_SIGNIFICANT = re.compile(r"\.(\d+)([eg])")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+")  # control characters, marks of direction


def table(
    rows: pd.DataFrame | Mapping[str, Mapping[str, object]],
    digits: int | str | Mapping[str, int | str] = 2,
    first: str | Sequence[str] = "",
) -> None:
    """Display a table: as Markdown on a page or in a notebook, as aligned text where only text can be shown.

    Whole numbers keep all their digits, missing values are shown as a dash, and truth values as yes or no.  Words are
    shown literally: they may come from outside, so none of them is read as Markdown or HTML.

    Args:
        rows: a frame, or a mapping from the name of each row to its entries by column.  Every level of a frame's index
            becomes a column of names, in which repeated names are blank; levels of its columns are joined by commas.
        digits: decimals of numbers that are not whole; or a format such as ``".0%"``; or a number of significant
            digits, as in ``".2g"`` (two) or ``".1e"`` (one more); or a mapping from columns to any of these (else 2).
        first: the head of the column of row names, or the heads for all levels of an index, by default their names.

    Raises:
        ValueError: there is no row, or ``digits`` names a column that the table does not have.
    """
    frame = rows.copy() if isinstance(rows, pd.DataFrame) else pd.DataFrame.from_dict(rows, orient="index")
    if frame.empty:
        raise ValueError(f"rows: expected at least one, got a table of shape {frame.shape}")
    frame.columns = [", ".join(map(str, c)) if isinstance(c, tuple) else str(c) for c in frame.columns]
    named = digits if isinstance(digits, Mapping) else dict.fromkeys(frame.columns, digits)
    if unknown := set(named) - set(frame.columns):
        raise ValueError(f"digits: expected columns of {list(frame.columns)}, got {sorted(unknown)}")
    given = [first] if isinstance(first, str) else list(first)
    heads = given if len(given) == frame.index.nlevels else [str(name or "") for name in frame.index.names]
    names = [list(map(str, key)) if isinstance(key, tuple) else [str(key)] for key in frame.index]
    once = [_once(above, own) for above, own in zip([None, *names], names, strict=False)]
    columns = [(head, False, list(values)) for head, values in zip(heads, zip(*once, strict=True), strict=True)]
    for at, name in enumerate(frame.columns):
        values = list(frame.iloc[:, at])
        numbers = all(isinstance(v, Real) and not isinstance(v, bool) for v in values)
        columns.append((name, numbers, [_entry(v, named.get(name, 2)) for v in values]))
    columns = [(_one_line(head), numbers, list(map(_one_line, entries))) for head, numbers, entries in columns]
    display({"text/plain": _plain(columns), "text/markdown": _markdown(columns)}, raw=True)


def how_recorded(record: Record) -> None:
    """Display, folded under one line, what was measured, on what, and with which seeds, versions and command."""
    notes = "".join(f"<li>{html.escape(_one_line(f'{key}: {value}'))}</li>" for key, value in record.provenance.items())
    folded = f'<details class="recorded"><summary>How this was recorded</summary><ul>{notes}</ul></details>'
    display({"text/plain": str(record), "text/markdown": folded}, raw=True)


def number(value: float, digits: int) -> str:
    """A number with this many significant digits: plain from 0.001 to 10,000, else with a power of ten, as 2.5·10⁻⁷."""
    factor, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    power = int(exponent or 0)  # infinity has none
    if -3 <= power <= 3:
        return f"{value:.{max(0, digits - 1 - power)}f}" if value else "0"
    return f"{factor}·".removeprefix("1·") + "10" + str(power).translate(_RAISED)


def _once(above: list[str] | None, own: list[str]) -> list[str]:
    """The names of a row without the outer ones that it shares with the row above."""
    shared = 0
    while above and shared < len(own) - 1 and above[: shared + 1] == own[: shared + 1]:
        shared += 1
    return [""] * shared + own[shared:]


def _one_line(text: object) -> str:
    """Text from outside on one line: line breaks and other control characters become spaces."""
    return _UNSEEN.sub(" ", str(text))


def _entry(value: object, digits: int | str) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if value is None or (isinstance(value, Real) and math.isnan(value)):
        return "–"
    if not isinstance(value, Real):
        return str(value)
    if isinstance(value, Integral) and isinstance(digits, int):
        return str(value)
    if significant := _SIGNIFICANT.fullmatch(str(digits)):
        text = number(float(value), int(significant[1]) + (significant[2] == "e"))
    else:
        text = format(float(value), digits if isinstance(digits, str) else f".{digits}f")
    # no minus before a number that is rounded to nothing
    return (text if text.strip("-0.%") else text.lstrip("-")).replace("-", "−")


def _plain(columns: list[tuple[str, bool, list[str]]]) -> str:
    filled = []
    for head, numbers, entries in columns:
        width = max(map(len, [head, *entries]))
        filled.append([f"{text:>{width}}" if numbers else f"{text:<{width}}" for text in (head, *entries)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*filled, strict=True))


def _markdown(columns: list[tuple[str, bool, list[str]]]) -> str:
    heads, numbers, entries = zip(*columns, strict=True)
    lines = [heads, ["--:" if right else ":--" for right in numbers], *zip(*entries, strict=True)]
    escaped = ([_MARKUP.sub(r"\\\g<0>", cell) for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
