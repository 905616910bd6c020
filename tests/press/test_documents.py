"""What README, CONTRIBUTING and their like point at is there; one version and one day stand in every file."""

import re
import tomllib

import pytest
import yaml
from press.citations import citations
from press.cli import main
from toybook import ROOT

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / ".github").rglob("*.*"))]
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
TARGET = re.compile(r"(?:`|run: )make ([a-z][a-z-]*)")
PRESS = re.compile(r"python -m press (\w+)")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_commands_lead_somewhere(path):
    text = path.read_text("utf-8")
    assert not [link for link in LINK.findall(text) if not (path.parent / link).exists()]
    known = re.findall(r"^([a-z]+):.*  ## ", MAKEFILE, re.M)
    assert set(TARGET.findall(text)) <= set(known), "no such target in the Makefile"
    assert set(PRESS.findall(text)) <= set(main.commands), "no such command of the press"


def test_everything_says_the_same_version_and_day():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    version, day = re.search(r"^## \[([^\]]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M).groups()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"] == version
    assert (str(cited["version"]), str(cited["date-released"])) == (version, day)


def test_the_paper_cites_what_the_book_cites():
    cited = set(re.findall(r"@(\w+)", (ROOT / ".github/paper.md").read_text("utf-8")))
    assert cited and cited <= set(citations(ROOT / "chapters/references.bib"))
