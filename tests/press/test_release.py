"""One version and one date in every file that states them, and a short paper that cites what the book cites."""

import json
import re
import tomllib

import yaml
from press.citations import citations
from toybook import ROOT


def test_everything_says_the_same_version_and_day():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    archived = json.loads((ROOT / ".zenodo.json").read_text("utf-8"))
    changes = re.search(r"^## \[([^\]]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    version, day = changes.groups()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"] == version
    assert (str(cited["version"]), str(cited["date-released"])) == (version, day)
    assert (archived["version"], archived["publication_date"]) == (version, day)


def test_the_paper_is_short_and_cites_what_the_book_cites():
    text = (ROOT / "paper/paper.md").read_text("utf-8")
    assert len(text.split()) <= 900
    cited = set(re.findall(r"@(\w+)", text))
    assert cited and cited <= set(citations(ROOT / "chapters/references.bib"))
