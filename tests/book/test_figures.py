"""The figures that are kept: letters that a phone shows large enough, and few legends."""

import re

PHONE, READABLE = 358, 9.0
LEGENDS = 23  # figures of markers or bars, of lines that coincide or end in one point, and of small panels
WIDTH = re.compile(r'<svg[^>]* width="([\d.]+)pt"')
LETTERS = re.compile(r'<g [^>]*transform="translate\([^"]*scale\(([\d.]+) -\1\)"[^>]*>(.*?)</g>', re.S)
SMALLER = re.compile(r"<use [^>]*scale\(([\d.]+)\)")


def letters(svg: str) -> list[float]:
    """Sizes of all letters in pixels, on a phone; glyphs are a hundred units high, and exponents scaled once more."""
    width = float(WIDTH.search(svg)[1])
    sizes = []
    for scale, glyphs in LETTERS.findall(svg):
        inner = [float(smaller) for smaller in SMALLER.findall(glyphs)]
        sizes.append(100 * float(scale) * min([1.0, *inner]) * PHONE / width)
    return sizes


def test_text_of_figures_is_read_on_a_phone(root):
    found = {path.name: letters(path.read_text("utf-8")) for path in (root / "figures").glob("*.svg")}
    assert all(found.values()), "figures in which no letters were found"
    small = {name: round(min(sizes), 1) for name, sizes in found.items() if min(sizes) < READABLE}
    assert not small, f"smallest letters in pixels: {small}"


def test_lines_have_their_names_at_their_ends(root):
    legends = [p.name for p in (root / "figures").glob("*.svg") if 'id="legend_' in p.read_text("utf-8")]
    assert len(legends) <= LEGENDS, legends
