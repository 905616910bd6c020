"""One version, one date, one text: the changelog, the citation, what an archive reads, and the release itself."""

import hashlib
import json
import re
import shutil

import pytest
import yaml
from press.book import Book
from press.citations import citations
from press.release import notes, section, sums
from toybook import ROOT


@pytest.fixture
def here():
    return Book(ROOT)


def test_everything_says_the_same_version_and_day(here):
    newest = section(here)
    said = {"CHANGELOG.md": (newest["version"], newest["date"])}
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    said["CITATION.cff"] = (str(cited["version"]), str(cited["date-released"]))
    archived = json.loads((ROOT / ".zenodo.json").read_text("utf-8"))
    said[".zenodo.json"] = (archived["version"], archived["publication_date"])
    assert len(set(said.values())) == 1, said


def test_the_notes_are_the_changelogs_section(here):
    text = notes(here, f"v{here.project['version']}")
    assert text.startswith("The first edition.") or "###" in text
    assert "## [" not in text and "Keep a Changelog" not in text, "more than the newest section"


def test_a_tag_of_another_version_is_refused(here):
    with pytest.raises(ValueError, match=re.escape("TAG: expected v")):
        notes(here, "v9.9.9")


def test_a_version_without_its_section_is_refused(tmp_path):
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    project = tmp_path / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^version = ".*"$', 'version = "9.9"', project.read_text("utf-8")), "utf-8")
    with pytest.raises(ValueError, match=re.escape("says version 9.9, CHANGELOG.md says")):
        notes(Book(tmp_path))


def test_sums_are_of_every_file_but_themselves(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"a")
    (tmp_path / "SHA256SUMS").write_text("old")
    (tmp_path / ".gitignore").write_text("*")
    assert sums(tmp_path) == f"{hashlib.sha256(b'a').hexdigest()}  a.whl\n"


def test_the_paper_is_short_and_cites_what_the_book_cites():
    text = (ROOT / "paper/paper.md").read_text("utf-8")
    assert len(text.split()) <= 900
    cited = set(re.findall(r"@(\w+)", text))
    assert cited and cited <= set(citations(ROOT / "chapters/references.bib"))
