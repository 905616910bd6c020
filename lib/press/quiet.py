"""Decide which cells of a page are folded, and write the line that replaces each of them.

Code that teaches stays open.  A check is folded under a line made from its output.  Parameters, code that draws a
figure or makes a table, and cells with a fold line in their head (``:fold: …``) are folded as well.
"""

from __future__ import annotations

import re

import nbformat

from press.labels import Check, Verdict
from press.seeds import Tried

FOLD = "fold"
BOUNDED = re.compile(r"(?:error|value (?P<value>\S+)) ≤ (?P<bound>\S+)")
PARAMETER = re.compile(r"^(\w+)\s*(?::[^=\n]*)?=", re.M)
LABEL = re.compile(r"\b(?:claim|thm|prop|cor|eq)-[a-z][\w-]*")
LONG = re.compile(r"-?0\.\d{5,}")
POWER = re.compile(r"(?P<head>-?[\d.]+)e(?P<sign>[+-])0*(?P<digits>\d+)")
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
EXACT = 1e-200  # only exactly equal numbers satisfy a smaller bound


def title(cell: nbformat.NotebookNode) -> str:
    """Return the line for a folded cell that is not a check; it is empty if the cell stays open."""
    head = cell.metadata
    if "parameters" in head.get("tags", []):
        return f"Parameters: {', '.join(PARAMETER.findall(cell.source))}"
    drawn = "figure" if "figure" in head.get("mystnb", {}) else "table" if "table" in head else ""
    return head.get(FOLD) or (drawn and f"Code of this {drawn}")


def line(check: Check, tries: dict[str, Tried]) -> str:
    """Return the line for a check: one sentence per label, which begins with ``{label}`` if there are several."""
    found = {label: [v for v in check.verdicts if v.label == label and v.mutant] for label in check.verifies}
    said = {label: "; ".join(_said(v, tries.get(label)) for v in verdicts) for label, verdicts in found.items()}
    if len(said) == 1:
        words = next(iter(said.values()))
        sentences = words[:1].upper() + words[1:]
    else:
        sentences = ". ".join(f"{{{label}}}: {words}" for label, words in said.items())
    return f"{sentences}{_measured(check.measured_on)}."


def _measured(on: str | None) -> str:
    """Return the sentence that says what a claim was measured on, with labels written as ``{label}``."""
    if not on:
        return ""
    words = LABEL.sub(r"{\g<0>}", on.replace("`", ""))
    return f". Recorded{words.removeprefix('recorded')}" if words.startswith("recorded,") else f". Measured on {words}"


def _said(verdict: Verdict, tried: Tried | None) -> str:
    """Return a verdict in words, with the results over all seeds if the claim was tried at many, else of this run."""
    near = f"near miss ({verdict.mutant})"
    bounded = BOUNDED.fullmatch(verdict.holds)
    if bounded is None:
        return f"{verdict.holds}; {near}: {number(verdict.breaks)}"
    bound, claimed = float(bounded["bound"]), number(bounded["bound"])
    if tried:
        of = f"all {tried.seeds}" if tried.held == tried.seeds else f"{tried.held} of {tried.seeds}"
        most, least = (number(f"{share * bound:.2g}") for share in (tried.deviation, tried.mutant))
        return f"at most {most} at {of} seeds (claimed: {claimed}); {near}: at least {least}"
    if bounded["value"]:
        value = number(bounded["value"])
        return f"measured {value} (claimed: at most {claimed}); {near}: {number(verdict.breaks)}"
    exactly = "exactly equal" if bound < EXACT else f"error at most {claimed}"
    return f"{exactly}; {near}: error {number(verdict.breaks)}"


def number(text: str) -> str:
    """Format a number for readers: 7e-06 as 7·10⁻⁶, 3e+02 as 300."""
    if LONG.fullmatch(text):
        return f"{float(text):.3g}"
    power = POWER.fullmatch(text)
    if not power:
        return text
    exponent = int(power["sign"] + power["digits"])
    if abs(exponent) <= 3:
        return f"{float(text):g}"
    head = "" if power["head"] == "1" else f"{power['head']}·"
    return f"{head}10{str(exponent).translate(RAISED)}"
