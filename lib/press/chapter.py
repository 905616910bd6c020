"""A new chapter: a small true one, with every part that a chapter has, for its author to replace."""

from __future__ import annotations

import re
from pathlib import Path

from press.book import CHAPTERS, Book, chapter_number

SKELETON = Path(__file__).with_name("chapter.md")
NAME = re.compile(r"(?P<number>\d\d)-(?P<slug>[a-z0-9]+(?:-[a-z0-9]+)*)")
NUMBERED = re.compile(rf"^(?P<head> *- file: {CHAPTERS}/)\d\d-.*\n", re.M)


def chapter(book: Book, name: str, title: str) -> dict[str, bytes]:
    """Path → content of the new chapter and of the table of contents, where it stands behind the last one.

    Raises:
        ValueError: ``name`` is not NN-some-words or is taken, itself or its number; ``title`` is empty or two lines.
    """
    if not (match := NAME.fullmatch(name)):
        raise ValueError(f"NAME: expected two digits and words in small letters, such as 13-some-words, got {name!r}")
    if not title.strip() or "\n" in title:
        raise ValueError(f"TITLE: expected one line of words, got {title!r}")
    numbers = {chapter_number(other): other for other in book.names}
    if taken := numbers.get(int(match["number"])):
        raise ValueError(f"NAME: {match['number']} is the number of {taken}")
    path, words = (
        f"{CHAPTERS}/{name}.md",
        {"title": title.strip(), "slug": match["slug"], "package": book.project["name"]},
    )
    if (book.root / path).exists():
        raise ValueError(f"NAME: {path} exists already")
    words = {"title": title.strip(), "slug": match["slug"], "package": book.project["name"]}
    text = re.sub(r"@(\w+)@", lambda hole: words[hole[1]], SKELETON.read_text("utf-8"))
    contents = (book.root / "_toc.yml").read_text("utf-8")
    *_, last = NUMBERED.finditer(contents)
    contents = f"{contents[: last.end()]}{last['head']}{name}\n{contents[last.end() :]}"
    return {path: text.encode(), "_toc.yml": contents.encode()}
