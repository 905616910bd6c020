"""A new chapter's skeleton: what is refused, where it stands, and that it is a chapter as it is."""

import re
import shutil

import pytest
from click.testing import CliRunner
from press.book import Book
from press.chapter import SKELETON, chapter
from press.cli import main
from toybook import ROOT, make

TREE = ("_live", "_static", "chapters", "figures", "lib", "notebooks")
FILES = ("CITATION.cff", "Makefile", "_config.yml", "_toc.yml", "conftest.py", "constraints.txt", "pyproject.toml")
NEW = "99-new-words"


@pytest.mark.parametrize(
    ("name", "title", "said"),
    [
        ("02-other", "Other", "02 is the number of 02-angle"),
        ("new-words", "New", "expected two digits"),
        ("13-New", "New", "expected two digits"),
        ("13-new", " ", "TITLE: expected one line"),
    ],
)
def test_what_cannot_be_a_new_chapter_is_refused(book, name, title, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        chapter(book, name, title)


def test_it_stands_behind_the_last_chapter_and_nothing_else_changes(copy):
    before = (copy / "_toc.yml").read_text("utf-8")
    done = CliRunner().invoke(main, ["--root", str(copy), "chapter", NEW, "New words"])
    assert done.exit_code == 0, done.output
    added = f"      - file: chapters/{NEW}\n"
    assert (copy / "_toc.yml").read_text("utf-8").replace(added, "") == before
    names = Book(copy).names
    assert names.index(NEW) == names.index("02-angle") + 1, "not at the end of the last part with chapters"
    again = CliRunner().invoke(main, ["--root", str(copy), "chapter", NEW, "New words"])
    assert again.exit_code == 1 and "99 is the number of" in again.output, "an existing chapter is overwritten"


def test_no_hole_of_the_skeleton_is_left(book):
    text = chapter(book, NEW, "New words")[f"chapters/{NEW}.md"].decode()
    assert "# New words\n" in text and "prop-new-words-twice" in text
    assert re.findall(r"@\w+@", SKELETON.read_text("utf-8")) and "@" not in text


@pytest.mark.slow
def test_the_skeleton_is_a_chapter_as_it_is(tmp_path):
    """In a copy of the real book: it runs, is not refused, becomes a page and a notebook that nbval accepts."""
    for name in TREE:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("lib", "press", "__pycache__"))
    shutil.copytree(ROOT / "_build", tmp_path / "_build", ignore=shutil.ignore_patterns("part", "colab", "floors"))
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    assert make(tmp_path, "--touch", "book").returncode == 0
    for targets in (["chapter", f"NAME={NEW}", "TITLE=New words"], ["notebooks"], [f"nbval/notebooks/{NEW}.ipynb"]):
        done = make(tmp_path, *targets)
        assert done.returncode == 0, f"make {targets}: {done.stdout}{done.stderr}"
    page = (tmp_path / f"_build/html/chapters/{NEW}.html").read_text("utf-8")
    assert "New words" in page and "half of the mean removed" in page, "no check on the page"
