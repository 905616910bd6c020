"""Chapter numbers from file names: 07-inference is chapter 7 even where 03 to 06 do not exist."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles as Collector

from press.book import chapter_number

_count = Collector.assign_section_numbers


def assign_section_numbers(self: Collector, env: BuildEnvironment) -> list[str]:
    """Number as Sphinx does, then put the file's number in the place of the count."""
    before = env.toc_secnumbers
    _count(self, env)
    for doc, numbers in env.toc_secnumbers.items():
        if chapter := chapter_number(doc):
            env.toc_secnumbers[doc] = {anchor: _move(number, chapter) for anchor, number in numbers.items()}
            titles = [env.titles[doc], *env.tocs[doc].findall(nodes.reference)]
            for title in titles:
                if "secnumber" in title:
                    title["secnumber"] = _move(title["secnumber"], chapter)
    return [doc for doc, numbers in env.toc_secnumbers.items() if numbers != before.get(doc)]


def _move(number: tuple[int, ...] | list[int] | None, chapter: int) -> tuple[int, ...]:
    return (chapter, *number[1:]) if number else ()


def setup(app: Sphinx) -> None:
    """Sphinx has no hook between counting sections and counting figures, so the collector is changed."""
    Collector.assign_section_numbers = assign_section_numbers
