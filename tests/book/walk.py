"""One walk over a page in a browser: it is opened once, from disk, and all that tests ask about is seen on the way."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

DESK, PHONE = {"width": 1300, "height": 1000}, {"width": 390, "height": 844}
SEEN = """() => ({
    formulas: document.querySelectorAll('.math').length,
    set: document.querySelectorAll('mjx-container').length,
    errors: document.querySelectorAll('mjx-merror').length,
})"""
# Heights in pixels by kind: what is not code, printed output, a picture, a statement or a folded line is prose.
KINDS = """() => {
    const page = document.querySelector('.bd-article'), height = e => e.getBoundingClientRect().height;
    const kinds = {
        code: '.cell_input', folded: 'details > summary', picture: 'figure, img, .explore',
        printed: '.cell_output .output, table', statement: '.proof, .admonition',
    };
    const any = Object.values(kinds).join();
    const found = {all: height(page)};
    for (const [kind, chosen] of Object.entries(kinds)) {
        const top = e => e.checkVisibility() && !e.parentElement.closest(any) && !e.querySelector(kinds.picture);
        const shown = [...page.querySelectorAll(chosen)].filter(kind === 'picture'
            ? e => e.checkVisibility() && !e.parentElement.closest(chosen) : top);
        found[kind] = shown.reduce((sum, e) => sum + height(e), 0);
    }
    const others = Object.keys(kinds).reduce((sum, kind) => sum + found[kind], 0);
    return {...found, prose: found.all - others};
}"""
# What competes with the text, by kind and number; left edges of what starts a line; tables that are cut off unsaid;
# notes of the margin, and those that cover something.
LAYOUT = """() => {
    const page = document.querySelector('.bd-article');
    const shown = chosen => [...page.querySelectorAll(chosen)].filter(e => e.checkVisibility());
    const lines = 'section > :is(p, h2, h3, details, ul, figure, .math), figure, figcaption, .cell_input, caption';
    const outer = shown(lines).filter(e => !e.closest('li, .proof, .admonition, details > *'));
    const pictures = 'figure, .explore, .hold, .network';
    const cut = shown('table').filter(e => e.scrollWidth > e.clientWidth + 1);
    const said = (e, where) => e && getComputedStyle(e, where).content.includes('Scrolls');
    const says = e => said(e, '::before') || said(e.querySelector('caption'), '::after');
    const box = e => e.getBoundingClientRect();
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const notes = shown('.sidenote'), inTheWay = shown('img, table, pre, p, .sidenote');
    const contents = document.querySelector('.page-toc a');  // which stay where they are while the page scrolls
    const covers = note => contents?.checkVisibility() && box(note).right > box(contents).left
        || inTheWay.some(e => !e.contains(note) && !note.contains(e) && meet(box(e), box(note)));
    return {
        notes: notes.length,
        covering: notes.filter(covers).map(e => e.innerText.slice(0, 40)),
        folds: shown('details > summary').length,
        tables: shown('table').length,
        figures: shown(pictures).filter(e => !e.parentElement.closest(pictures)).length,
        cut: cut.length,
        unsaid: cut.filter(e => !says(e)).map(e => e.innerText.slice(0, 40)),
        edges: [...new Set(outer.map(e => Math.round(e.getBoundingClientRect().left)))],
    };
}"""
# Proofs, in lines of their text.
PROOFS = """() => [...document.querySelectorAll('.proof#proof')].map(proof =>
    [proof.textContent.trim().slice(0, 60),
     proof.getBoundingClientRect().height / parseFloat(getComputedStyle(proof).lineHeight)])"""
# A formula that is cut scrolls, and has a shadow at its edge that says so; displayed ones are set smaller before.
CUT = """() => [...document.querySelectorAll('.bd-article .math')]
    .flatMap(box => [box, ...box.querySelectorAll('mjx-container')])
    .filter(box => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1 && box.clientWidth)
    .filter(box => !getComputedStyle(box).backgroundImage.includes('gradient'))
    .map(box => `${box.closest('.math').id || 'a formula'} (${box.scrollWidth} in ${box.clientWidth})`)"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass
class Walk:
    """What was seen on a page.

    Attributes:
        seen: counts of formulas.
        kinds: heights in pixels by kind of content, and of all, on a wide screen.
        proofs: the first words of each proof, and how many lines it takes there.
        cut: by width of the window, formulas that do not fit their column and do not say so.
        layout: by width of the window, counts of folds, tables and figures, left edges, and tables that are cut off.
        overflow: pixels by which the page is wider than a phone.
        complaints: errors on the console; ``requests``: what was asked of other machines; ``files``: and of the disk.
    """

    seen: dict
    kinds: dict[str, float] = field(default_factory=dict)
    proofs: list[tuple[str, float]] = field(default_factory=list)
    cut: dict[int, list[str]] = field(default_factory=dict)
    layout: dict[int, dict] = field(default_factory=dict)
    overflow: int = 0
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)


def walk(browser, path: Path) -> Walk:
    page = browser.new_page(viewport=DESK)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("() => window.MathJax?.startup?.promise")
    found = Walk(page.evaluate(SEEN), complaints=complaints)
    found.kinds, found.proofs = page.evaluate(KINDS), page.evaluate(PROOFS)
    found.cut[DESK["width"]], found.layout[DESK["width"]] = page.evaluate(CUT), page.evaluate(LAYOUT)
    page.evaluate("() => document.querySelectorAll('details:has(.explore)').forEach(fold => fold.open = true)")
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(200)
    found.cut[PHONE["width"]], found.layout[PHONE["width"]] = page.evaluate(CUT), page.evaluate(LAYOUT)
    found.overflow = page.evaluate(OVERFLOW)
    page.close()
    found.requests = [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    found.files = {Path(unquote(urlsplit(url).path)) for url in requests if url.startswith("file:")}
    return found
