"""Render MyST as plain Markdown, with numbers and links resolved.  MyST that has no plain form is an error.

All labels, terms, pages and sources in a text exist: the pages are built first, and Sphinx refuses unknown ones.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass

import click

from press.citations import Citation
from press.myst import ROLE, Block, blocks

STATEMENTS = ("theorem", "proposition", "corollary", "lemma", "definition", "conjecture", "observation", "remark")
OPENING = "opening"  # the class of a page's opening picture, which a notebook draws itself
TITLED = re.compile(r"(?P<words>.*?)\s*<(?P<target>[^<>]+)>", re.S)
NOTE, NOTED = re.compile(r"^\[\^([\w-]+)\]: (.+)(\n+|$)", re.M), re.compile(r"\[\^([\w-]+)\]")
LOCAL_LINK = re.compile(r"\]\((#[^)]*|[^):]*\.(?:md|ipynb)[^)]*)\)")


@dataclass(frozen=True)
class Plain:
    """Renders the text of one page.

    ``labels``, ``terms`` and ``titles`` come from the built pages (:mod:`press.site.labels`); ``notebooks`` contains
    the names of the pages that are notebooks.  Links are relative to ``notebooks/{page}.ipynb`` and lead to notebooks
    or, for text pages, to their files in ``chapters``.
    """

    page: str
    labels: dict[str, dict[str, str]]
    terms: dict[str, str]
    titles: dict[str, str]
    citations: dict[str, Citation]
    notebooks: list[str]

    def render(self, text: str) -> str:
        """Return ``text`` without MyST; a margin note becomes a parenthesis at the place that refers to it."""
        notes = {name: words for name, words, _ in NOTE.findall(text)}
        text = NOTED.sub(lambda found: f" ({self._note(notes, found[1])})", NOTE.sub("", text))
        lines, out, at = text.split("\n"), [], 0
        for block in blocks(text):
            out += lines[at : block.start]
            if block.kind == "prose":
                out.append(self._prose("\n".join(lines[block.start : block.end])))
            elif block.kind not in ("target", "comment"):
                indent = re.match(r"[\s>]*", lines[block.start])[0]
                out += [(indent + line).rstrip() for line in self._block(block).split("\n")]
            at = max(at, block.end)
        return re.sub(r"\n{3,}", "\n\n", "\n".join(out + lines[at:])).strip()

    def number(self, label: str) -> str:
        """Return the text of a {numref} reference."""
        return self.labels[label]["numref"]

    def name(self, label: str) -> str:
        """Return the text of a {ref}, {eq} or {prf:ref} reference."""
        return self.labels[label]["ref"]

    def _block(self, block: Block) -> str:
        if block.kind == "math":
            return _math(self, block)
        if block.name not in DIRECTIVES:
            raise self._unknown(f"{{{block.name}}} {block.argument}".strip())
        return DIRECTIVES[block.name](self, block)

    def _prose(self, text: str) -> str:
        if link := LOCAL_LINK.search(ROLE.sub("", text)):
            raise self._unknown(f"the link {link[0][1:]}; write {{ref}} or {{doc}}")
        return ROLE.sub(self._role, text)

    def _role(self, match: re.Match) -> str:
        if not match["name"]:
            return match[0]
        if match["name"] not in ROLES:
            raise self._unknown(match[0])
        return ROLES[match["name"]](self, match["text"])

    def _note(self, notes: dict[str, str], name: str) -> str:
        if name not in notes:
            raise self._unknown(f"the note {name}, which its own cell does not define")
        return notes[name]

    def _linked(self, words: str, doc: str) -> str:
        name = posixpath.relpath(doc, "chapters")
        if name == self.page:
            return words
        target = f"notebooks/{name}.ipynb" if name in self.notebooks else f"chapters/{name}.md"
        return f"[{words}]({os.path.relpath(target, os.path.dirname(f'notebooks/{self.page}'))})"

    def _unknown(self, what: str) -> click.ClickException:
        return click.ClickException(f"{self.page}: no plain form for {what}")


def _math(plain: Plain, block: Block) -> str:
    tag = f"\n\\tag{{{plain.labels[block.label]['number']}}}" if block.label else ""
    return f"$$\n{block.body.strip()}{tag}\n$$"


def _statement(plain: Plain, block: Block) -> str:
    head = plain.name(block.label) if block.label else block.name.removeprefix("prf:").capitalize()
    return _boxed(plain, head, block)


def _admonition(plain: Plain, block: Block) -> str:
    head = plain._prose(block.argument)
    if "dropdown" in block.options.get("class", ""):
        return _folded(plain, head, block)
    return _quote(f"**{head}.** {plain.render(block.body)}")


def _exercise(plain: Plain, block: Block) -> str:
    return _boxed(plain, plain.number(block.label) if block.label else "Exercise", block)


def _solution(plain: Plain, block: Block) -> str:
    return _folded(plain, f"Solution to {plain.number(block.argument)}", block)


def _image(plain: Plain, block: Block) -> str:
    if block.options.get("class") == OPENING:
        return ""
    folder = os.path.dirname(f"notebooks/{plain.page}")
    source = os.path.relpath(os.path.join("chapters", os.path.dirname(plain.page), block.argument), folder)
    image = f"![{block.options.get('alt', '')}]({source})"
    if not block.body.strip():
        return image
    head = f"*{plain.number(block.label)}.* " if block.label else ""
    return f"{image}\n\n{head}{plain.render(block.body)}"


def _boxed(plain: Plain, head: str, block: Block) -> str:
    title = f" ({plain._prose(block.argument)})" if block.argument else ""
    return _quote(f"**{head}{title}.** {plain.render(block.body)}")


def _quote(text: str) -> str:
    # Notebooks extract math before they parse block quotes, so a formula must not span lines here.
    text = re.sub(r"\$\$.+?\$\$", lambda math: " ".join(math[0].split()), text, flags=re.S)
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _folded(plain: Plain, head: str, block: Block) -> str:
    return f"<details>\n<summary>{head}</summary>\n\n{plain.render(block.body)}\n\n</details>"


def _titled(text: str) -> tuple[str, str]:
    """Split ``words <target>`` into the link text, which may be empty, and the target."""
    titled = TITLED.fullmatch(text)
    return (titled["words"], titled["target"]) if titled else ("", text)


def _reference(field: str) -> Callable[[Plain, str], str]:
    def role(plain: Plain, text: str) -> str:
        words, target = _titled(text)
        entry = plain.labels[target]
        if field not in entry:
            raise plain._unknown(f"a reference to {text}: it has no number or title")
        number = entry[field].rpartition(" ")[2]
        return plain._linked(words.replace("%s", number) or entry[field], entry["doc"])

    return role


def _doc(plain: Plain, text: str) -> str:
    words, target = _titled(text)
    doc = posixpath.normpath(posixpath.join("/chapters", posixpath.dirname(plain.page), target))[1:]
    return plain._linked(words or plain.titles[doc], doc)


def _cite(textual: bool) -> Callable[[Plain, str], str]:
    form, around = ("{} ({})", "{}") if textual else ("{}, {}", "({})")

    def role(plain: Plain, text: str) -> str:
        cited = []
        for key in (key.strip() for key in text.split(",")):
            source = plain.citations[key]
            words = form.format(source.authors, source.year)
            cited.append(f"[{words}]({source.address})" if source.address else words)
        return around.format("; ".join(cited))

    return role


def _term(plain: Plain, text: str) -> str:
    words, target = _titled(text)
    return plain._linked(words or text, plain.terms[" ".join(target.split()).lower()])


DIRECTIVES: dict[str, Callable[[Plain, Block], str]] = {
    "math": _math,
    **{f"prf:{name}": _statement for name in (*STATEMENTS, "proof")},
    "admonition": _admonition,
    "exercise": _exercise,
    "solution": _solution,
    "figure": _image,
    "image": _image,
}

ROLES: dict[str, Callable[[Plain, str], str]] = {
    "eq": _reference("ref"),
    "prf:ref": _reference("ref"),
    "ref": _reference("ref"),
    "numref": _reference("numref"),
    "doc": _doc,
    "cite:p": _cite(textual=False),
    "cite:t": _cite(textual=True),
    "term": _term,
}
