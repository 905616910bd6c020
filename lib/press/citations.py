"""Sources as author, year and address, from a BibTeX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pybtex.database import Entry, parse_file
from pybtex.richtext import Text

# The first field that an entry has becomes its address.
ADDRESSES = {"doi": "https://doi.org/{}", "url": "{}", "eprint": "https://arxiv.org/abs/{}"}


@dataclass(frozen=True)
class Citation:
    """A source as it is cited: ``Ba et al.``, ``2016``, an address or an empty string."""

    authors: str
    year: str
    address: str


def citations(bib: Path) -> dict[str, Citation]:
    """Key → citation of every entry of a BibTeX file."""
    return {key: _citation(entry) for key, entry in parse_file(str(bib)).entries.items()}


def _citation(entry: Entry) -> Citation:
    people = entry.persons.get("author") or entry.persons.get("editor") or []
    names = [str(Text.from_latex(" ".join((*p.prelast_names, *p.last_names)))) for p in people] or [entry.key]
    authors = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    address = next((form.format(entry.fields[key]) for key, form in ADDRESSES.items() if key in entry.fields), "")
    return Citation(authors, entry.fields.get("year", "n.d."), address)
