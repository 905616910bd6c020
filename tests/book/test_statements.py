"""The manifest against the pages: every label, number, link and edge, read from the HTML and from nothing else."""

import json
import re
from posixpath import dirname, join, normpath

import pytest
from bs4 import BeautifulSoup
from press.reference import public

STATEMENT = re.compile(r"(thm|prop|cor|lem|claim|def|conj|err|eq)-")
PROVABLE = {"theorem", "proposition", "corollary", "lemma"}
STATUSES = {"proved and checked", "checked numerically", "measured", "open", "definition"}


@pytest.fixture(scope="module")
def manifest(html):
    return json.loads((html / "manifest.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def entries(manifest):
    return {entry["label"]: entry for entry in manifest["statements"]}


@pytest.fixture(scope="module")
def pages(book, html):
    """Address → page, in the order of the book."""
    names = [f"chapters/{name}.html" for name in book.names]
    return {name: parsed(html / name) for name in names}


def parsed(path):
    """A page without scripts and pictures, which make most of it."""
    text = re.sub(r"<script.*?</script>|(?<=src=\")data:[^\"]*", "", path.read_text("utf-8"), flags=re.S)
    return BeautifulSoup(text, "html.parser")


def label_of(anchor):
    """The label of what has this id, None for all that is no statement."""
    label = anchor.removeprefix("equation-")
    return label if STATEMENT.match(label) and (label != anchor) == label.startswith("eq-") else None


@pytest.fixture(scope="module")
def stated(pages):
    """Label → page and element, in the order of the book."""
    return {
        label: (page, element)
        for page, soup in pages.items()
        for element in soup.article.find_all(id=True)
        if (label := label_of(element["id"]))
    }


def linked(page, elements):
    """The pages and labels to which links in the elements lead."""
    found = set()
    for element in elements:
        for link in element.find_all("a", class_="internal"):
            if link.find_parent(class_="marks") is not None:
                continue  # what vouches for a statement is no part of it
            file, _, anchor = link["href"].partition("#")
            if label := label_of(anchor):
                found.add((resolved(page, file), label))
    return found


def resolved(page, link):
    """The page to which a link on a page leads."""
    return normpath(join(dirname(page), link)) if link else page


@pytest.fixture(scope="module")
def proofs(pages):
    """Each proof by page and element, with the label of the statement above it that can have one."""
    found = []
    for page, soup in pages.items():
        above = None
        for element in soup.find_all("div", class_="proof"):
            kinds = set(element["class"])
            if kinds & PROVABLE:
                above = element["id"]
            elif kinds == {"proof", "admonition"}:
                found.append((page, element, above))
    return found


def test_every_label_of_the_pages_and_no_other(entries, manifest, stated):
    assert len(entries) == len(manifest["statements"]) > 150
    assert list(entries) == list(stated)


def test_addresses_lead_to_the_statements(entries, stated):
    for label, (page, element) in stated.items():
        assert entries[label]["url"] == f"{page}#{element['id']}"
        assert entries[label]["anchor"] == element["id"]
        assert page == f"chapters/{entries[label]['page']}.html"


def test_numbers_titles_and_kinds(entries, stated):
    for label, (_, element) in stated.items():
        entry = entries[label]
        if label.startswith("eq-"):
            number, title, kind = element.select_one(".eqno").find(string=True), "", "equation"
        else:
            head = element.select_one(".admonition-title")
            number = head.select_one(".caption-number").text
            title = head.text.removeprefix(number).strip().removeprefix("(").removesuffix(")")
            (kind,) = (name for name in set(element["class"]) - {"proof", "admonition"} if "-" not in name)
        assert (entry["number"], entry["kind"]) == (number.strip(), kind), label
        assert plain(entry["title"]) == plain(straight(title)), label


def straight(text):
    """With the quotes that were written; Sphinx bends them."""
    return text.replace("‘", "'").replace("’", "'").replace("“", '"').replace("”", '"')


def plain(title):
    """A title without the marks of mathematics and of terms, which the page shows in its own way."""
    title = re.sub(r"\{term\}`([^`<]*)(?: <[^>]*>)?`", r"\1", title)
    return re.sub(r"\$|\\\(|\\\)|\s+|[*`]", "", title)


def test_pages_have_their_titles(pages, manifest):
    for name, title in manifest["pages"].items():
        heading = pages[f"chapters/{name}.html"].select_one("article h1")
        extra = [mark.text for mark in heading.select(".section-number, .headerlink")]
        assert heading.text.removeprefix(extra[0] if len(extra) > 1 else "").removesuffix(extra[-1]) == title


def test_edges_are_the_links_of_a_statement_and_of_its_proof(entries, stated, proofs):
    where = stated
    own = {label: parts(element) | {label} for label, (_, element) in where.items()}
    found = {(label, "statement"): labels(page, element) for label, (page, element) in where.items()}
    for page, element, label in proofs:
        own[label] |= parts(element)
        found.setdefault((label, "proof"), set()).update(labels(page, element))
    edges = {key: links - own[key[0]] for key, links in found.items()}
    said = {
        (label, place): {used["label"] for used in entry["uses"] if place in used["in"]}
        for label, entry in entries.items()
        for place in ("statement", "proof")
    }
    for key in said:
        assert said[key] == edges.get(key, set()), key
    assert sum(map(len, said.values())) > 50, "hardly any statement uses another"


def parts(element):
    """The labels of equations in a statement or a proof."""
    return {label for inner in element.find_all(id=True) if (label := label_of(inner["id"]))}


def labels(page, element):
    return {label for _, label in linked(page, [element])}


def test_links_lead_to_the_page_that_states(pages, stated):
    home = {label: page for label, (page, _) in stated.items()}
    for page, soup in pages.items():
        for there, label in linked(page, [soup.select_one("article")]):
            assert home[label] == there, f"{page} looks for {label} in {there}"


def test_marks_lead_to_what_a_statement_uses_and_to_what_uses_it(entries, stated):
    marked = 0
    for label, (page, element) in stated.items():
        if (line := element.select_one(".marks")) is None:
            continue
        leads = {label_of(link["href"].partition("#")[2]) for link in line.select("p:not(.check) a.internal")}
        entry = entries[label]
        assert leads == {used["label"] for used in entry["uses"]} | set(entry["used_by"]), f"{page}: {label}"
        marked += bool(leads)
    assert marked > 50, "hardly any statement is marked"


def test_used_by_is_uses_the_other_way(entries):
    uses = {(label, used["label"]) for label, entry in entries.items() for used in entry["uses"]}
    assert uses == {(user, label) for label, entry in entries.items() for user in entry["used_by"]}


def test_what_is_proved_has_a_proof_on_its_page(entries, stated, proofs):
    proved = {label for _, _, label in proofs}
    for label, entry in entries.items():
        assert entry["status"] in STATUSES
        whole = entry["part_of"] or label
        assert (entry["status"] == "proved and checked") == (whole in proved), label
        if entry["part_of"]:
            elements = [pages_element for _, pages_element, owner in proofs if owner == whole]
            elements.append(stated[whole][1])
            assert any(element.find(id=f"equation-{label}") for element in elements), label


def test_a_check_stands_where_it_is_said_and_printed_that(pages, entries):
    cells = {(page, cell.get("id")): cell for page in pages for cell in pages[page].select("div.cell")}
    checks = 0
    for label, entry in entries.items():
        assert bool(entry["checks"]) == (entry["status"] not in ("open", "definition")), label
        for check in entry["checks"]:
            page, anchor = check["url"].split("#")
            assert (page, anchor) == (f"chapters/{check['page']}.html", check["anchor"])
            cell = cells[page, anchor]
            assert "tag_check" in cell["class"], check
            code, printed = (cell.select_one(part).text for part in (".cell_input", ".cell_output"))
            assert label in code or label in printed
            for line in check["printed"]:
                said = f"{label}: {line['holds']}; with {line['near_miss']} {line['gave']}"
                assert said in printed.splitlines(), check
                checks += 1
            assert check["printed"], f"{label}: {anchor} printed nothing of it"
            assert bool(check["measured_on"]) >= (entry["status"] == "measured"), label
    assert checks >= len(entries) - 10


def test_functions_are_public_and_those_in_the_code_are_among_them(pages, entries, book):
    known, checks = [p.name for p in public(book.project["name"])], 0
    cells = {cell.get("id"): cell for soup in pages.values() for cell in soup.select("div.cell")}
    for entry in entries.values():
        for check in entry["checks"]:
            unknown = [f for f in check["functions"] if not any(f == n or f.startswith(f"{n}.") for n in known)]
            assert not unknown, check["anchor"]
            code = cells[check["anchor"]].select_one(".cell_input").text
            written = set(re.findall(r"\bng(?:\.[A-Za-z]\w*)+", code)) - {"ng.verify"}
            assert written <= set(check["functions"]), check["anchor"]
            checks += bool(check["functions"])
    assert checks > 50


def test_the_ledger_says_what_the_manifest_says(html, entries):
    ledger, rows = "chapters/appendix/ledger.html", {}
    for row in parsed(html / ledger).select("#the-ledger tbody tr"):
        cells = row.select("td")
        rows[label_of(cells[0].a["href"].partition("#")[2])] = cells
    assert list(rows) == [label for label, entry in entries.items() if entry["status"] != "definition"]
    for label, cells in rows.items():
        entry = entries[label]
        assert resolved(ledger, cells[0].a["href"]) == entry["url"]
        assert cells[0].a.text == entry["number"]
        assert cells[1].text.split(" on ")[0] == entry["status"]
        for line in [line for check in entry["checks"] for line in check["printed"]]:
            assert straight(line["near_miss"]) in straight(cells[4].text)
            assert f"{line['holds']} against {line['gave']}" in straight(cells[5].text)
        if tries := entry["seeds"]:
            assert cells[2].text.startswith(f"{tries['held']} of {tries['tried']}, "), "the record of another claim"
        links = [resolved(ledger, link["href"]) for link in cells[6].select("a")]
        assert links == [check["url"] for check in entry["checks"]]
