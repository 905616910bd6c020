"""Parse MyST text into blocks, for the labels, the checks and the plain notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import yaml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

NAME = re.compile(r"\{([\w:.-]+)\}$")
OPTION = re.compile(r":([\w-]+):[ \t]*(.*)")
# A code span is matched first and has no name, so that a role quoted in one is left alone.
ROLE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|\{(?P<name>[\w:.-]+)\}(`+)(?P<text>.+?)\3", re.S)
REFERENCES = ("prf:ref", "eq", "ref", "numref")
NO_MYST_INSIDE = {"math", "code", "code-block", "code-cell", "literalinclude", "raw", "bibliography"}

_extensions = {"amsmath", "colon_fence", "dollarmath"}
_parser = create_md_parser(MdParserConfig(enable_extensions=_extensions, dmath_double_inline=True), RendererHTML)


@dataclass(frozen=True)
class Block:
    """A construct of MyST and the lines ``[start, end)`` it covers.

    ``kind`` is directive, math (``$$ … $$``), target (``(label)=``), comment (``% …``) or prose (lines that
    may hold roles).  ``name``, ``argument`` and ``options`` are a directive's; math and targets also keep their
    label in ``options["label"]``.
    """

    kind: str
    start: int
    end: int
    body: str
    name: str = ""
    argument: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The label that the block defines, or an empty string."""
        return self.options.get("label") or self.options.get("name", "")


def blocks(text: str) -> list[Block]:
    """Return the blocks of ``text`` from top to bottom; the text between them is plain Markdown."""
    found: dict[int, Block] = {}
    for token in _parser.parse(text):
        make = _MAKERS.get(token.type)
        if make and token.map and (block := make(token, *token.map)):
            # The cells of a table row share their line, which is one block of prose.
            found.setdefault(block.start, block)
    return [found[start] for start in sorted(found)]


def walk(text: str, inside: tuple[Block, ...] = ()) -> Iterator[tuple[Block, tuple[Block, ...]]]:
    """Yield every block, outer before inner, with the directives that contain it, outermost first."""
    for block in blocks(text):
        yield block, inside
        if block.kind == "directive" and block.name not in NO_MYST_INSIDE:
            yield from walk(block.body, (*inside, block))


def roles(text: str, name: str) -> Iterator[str]:
    """Yield the contents of the roles called ``name``."""
    return (match["text"] for match in ROLE.finditer(text) if match["name"] == name)


def references(text: str) -> list[str]:
    """Return the labels that ``text`` cites, each once; a reference with its own link text is ``words <label>``."""
    written = (found for role in REFERENCES for found in roles(text, role))
    return list(dict.fromkeys(found.rpartition("<")[2].rstrip("> ") for found in written))


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a MyST table; pipes in cells are escaped, and line breaks become spaces."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _directive(token: Token, start: int, end: int) -> Block | None:
    head, _, argument = token.info.strip().partition(" ")
    if not (name := NAME.match(head)):
        return None
    options, body = _options(token.content)
    return Block("directive", start, end, body, name[1], argument.strip(), options)


def _options(content: str) -> tuple[dict[str, str], str]:
    """Split a directive's content into its options, in either of MyST's two spellings, and its body."""
    if content.startswith("---\n"):
        head, _, body = content[4:].partition("\n---\n")
        return yaml.safe_load(head), body
    options, lines = {}, content.split("\n")
    while lines and (option := OPTION.match(lines[0])):
        options[option[1]] = option[2].strip()
        lines.pop(0)
    return options, "\n".join(lines)


def _math(token: Token, start: int, end: int) -> Block:
    return Block("math", start, end, token.content, options={"label": token.info} if token.info else {})


_MAKERS = {
    "fence": _directive,
    "colon_fence": _directive,
    "math_block": _math,
    "math_block_label": _math,
    "myst_target": lambda token, a, b: Block("target", a, b, "", options={"label": token.content}),
    "myst_line_comment": lambda token, a, b: Block("comment", a, b, token.content),
    "inline": lambda token, a, b: Block("prose", a, b, token.content),
}
