"""Read the authors, year and address of each source from a BibTeX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pybtex.database import Entry, parse_file
from pybtex.richtext import Text

# The first of these fields that an entry has gives its address.
ADDRESSES = {"doi": "https://doi.org/{}", "url": "{}", "eprint": "https://arxiv.org/abs/{}"}


@dataclass(frozen=True)
class Citation:
    """A source as it is cited: ``Ba et al.``, ``2016``, and an address, which may be empty."""

    authors: str
    year: str
    address: str


def citations(bib: Path) -> dict[str, Citation]:
    """Return the citation of every entry of a BibTeX file, by key."""
    return {key: _citation(entry) for key, entry in parse_file(str(bib)).entries.items()}


def _citation(entry: Entry) -> Citation:
    people = entry.persons.get("author") or entry.persons.get("editor") or []
    names = [str(Text.from_latex(" ".join((*p.prelast_names, *p.last_names)))) for p in people] or [entry.key]
    authors = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    address = next((form.format(entry.fields[key]) for key, form in ADDRESSES.items() if key in entry.fields), "")
    return Citation(authors, entry.fields.get("year", "n.d."), address)
