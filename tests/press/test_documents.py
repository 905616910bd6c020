"""What README, CONTRIBUTING and their like point at is there: files, make targets, programs of the press."""

import re

import pytest
from press.cli import main
from toybook import ROOT, make

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / ".github").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
TARGET = re.compile(r"`make ([a-z][a-z-]*)")
PRESS = re.compile(r"python -m press (\w+)")
HEAD = re.compile(r"^### (.+)$|^([a-z-]+):.*  ## ", re.M)


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request):
    return request.param


def test_links_lead_to_files(document):
    links = LINK.findall(document.read_text("utf-8"))
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing, missing


def test_commands_exist(document):
    text = document.read_text("utf-8")
    known = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert set(TARGET.findall(text)) <= set(known), "no such target in the Makefile"
    assert set(PRESS.findall(text)) <= set(main.commands), "no such command of the press"


def test_help_lists_every_target_under_its_group():
    done = make(ROOT, "help")
    listed = [line for line in done.stdout.splitlines() if line]
    written = HEAD.findall((ROOT / "Makefile").read_text("utf-8"))
    assert [line.split("  ")[0] or line.split()[0] for line in listed] == [group or target for group, target in written]
    groups = [group for group, _ in written if group]
    assert {"Read", "Write", "Publish", "Measure", "Check"} <= set(groups) and written[0][0], "a target without a group"
