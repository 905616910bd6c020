"""The toy book as an EPUB: what the archive must be, and what is in it."""

import posixpath
import re
import zipfile
from urllib.parse import unquote, urldefrag
from xml.etree import ElementTree

import pytest
from press.edition import epub as edition
from toybook import make

XHTML, OPF = "{http://www.w3.org/1999/xhtml}", "{http://www.idpf.org/2007/opf}"


@pytest.fixture(scope="module")
def archive(made, chromium):
    done = make(made, "epub")
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(made / edition.FOLDER / edition.NAME)


@pytest.fixture(scope="module")
def trees(archive):
    """Every page, parsed as strictly as a reader of EPUBs does."""
    return {name: ElementTree.fromstring(archive.read(name)) for name in archive.namelist() if name.endswith(".xhtml")}


def test_it_says_what_it_is_where_readers_look(archive):
    first = archive.infolist()[0]
    assert first.filename == "mimetype" and first.compress_type == zipfile.ZIP_STORED
    assert archive.read("mimetype") == b"application/epub+zip"
    assert b"book/book.opf" in archive.read("META-INF/container.xml")


def test_all_that_is_in_it_is_declared_and_all_pages_are_in_order(archive):
    package = ElementTree.fromstring(archive.read("book/book.opf"))
    declared = {item.get("href"): item for item in package.iter(f"{OPF}item")}
    assert {f"book/{name}" for name in declared} | {"mimetype", "META-INF/container.xml", "book/book.opf"} == set(
        archive.namelist()
    )
    files = {item.get("id"): name for name, item in declared.items()}
    order = [files[item.get("idref")] for item in package.iter(f"{OPF}itemref")]
    assert order[2:6] == ["nav.xhtml", "index.xhtml", "02-mean.xhtml", "07-angle.xhtml"]
    assert declared["nav.xhtml"].get("properties") == "nav"
    assert "mathml" in declared["02-mean.xhtml"].get("properties")


def test_every_link_leads_to_an_id_and_every_picture_has_words(archive, trees):
    ids = {name: {e.get("id") for e in tree.iter() if e.get("id")} for name, tree in trees.items()}
    links = 0
    for name, tree in trees.items():
        for link in tree.iter(f"{XHTML}a"):
            page, goal = urldefrag(link.get("href", ""))
            if not page.startswith("http"):
                path = posixpath.join("book", page)
                assert unquote(goal) in ids[path], f"{name}: a link to nothing, {link.get('href')}"
                links += 1
        for picture in tree.iter(f"{XHTML}img"):
            assert picture.get("alt"), f"{name}: a picture without words"
            assert f"book/{picture.get('src')}" in archive.namelist()
    assert links > 20


def test_formulas_are_mathml_and_nothing_wants_a_script(trees):
    text = " ".join(ElementTree.tostring(tree, "unicode") for tree in trees.values())
    assert text.count("Math/MathML") and len(re.findall(r"<ns\d:math|<math", text)) > 5, "formulas are lost"
    assert r"\(" not in text, "a formula was not set"
    assert "𝟏" in text and 'mathvariant="bold"' not in text, "few readers know mathvariant, and would show a plain 1"
    wanting = {e.tag for tree in trees.values() for e in tree.iter()} & {
        XHTML + n for n in ("script", "input", "button")
    }
    assert not wanting


def test_contents_are_a_list_in_a_list(trees):
    (nav,) = trees["book/nav.xhtml"].iter(f"{XHTML}nav")
    assert nav.get("{http://www.idpf.org/2007/ops}type") == "toc"
    titles = ["".join(item.itertext()) for item in nav.findall(f"{XHTML}ol/{XHTML}li/{XHTML}a")]
    assert titles == ["Preface", "Part I", "Part II", "Appendix"]
    assert nav.find(f"{XHTML}ol/{XHTML}li/{XHTML}ol/{XHTML}li/{XHTML}ol") is not None, "sections are lost"
