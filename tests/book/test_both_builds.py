"""The standard tool, ``jupyter-book build .``, gives the same pages: in an environment of its own, for version 1 wants
an older Sphinx than the book's."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest
from bs4 import BeautifulSoup

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jupyter_book(root):
    """The command, in an environment on top of this one that is kept in _build: later runs need no network."""
    folder = root / "_build/jupyter-book"
    command = folder / "bin/jupyter-book"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        python = folder / "bin/python"
        inside = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        with open(f"{inside.strip()}/project.pth", "w", encoding="utf-8") as file:
            file.write(sysconfig.get_path("purelib"))
        install = [python, "-m", "pip", "install", "--quiet", "jupyter-book<2"]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            give_up = pytest.fail if os.environ.get("CI") else pytest.skip
            give_up(f"Jupyter Book could not be installed; this needs the network once: {done.stderr}")

    def build(source, target):  # -W and -n: every warning is an error, a reference to nothing is one
        words = ["build", "--all", "-W", "-n", "--keep-going", "--path-output", str(target), str(source)]
        done = subprocess.run([command, *words], cwd=source, capture_output=True, text=True, env=clean())
        return done.returncode, done.stdout + done.stderr, target / "_build/html"

    return build


def clean():
    """The session's environment, in which the environment's own Python finds what is its own."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")}


@pytest.fixture(scope="module")
def standard(root, html, jupyter_book, tmp_path_factory):
    status, said, pages = jupyter_book(root, tmp_path_factory.mktemp("standard"))
    assert status == 0, said[-3000:]
    return pages


def facts(path):
    """What a page says and shows, whatever its frame: versions of Sphinx differ in white space and in order."""
    soup = BeautifulSoup(path.read_text("utf-8"), "html.parser")
    page = soup.select_one("article")
    for away in page.select("script, style, .headerlink, .imprint"):
        away.decompose()

    def words(chosen):
        return ["".join(element.get_text().split()) for element in page.select(chosen)]

    return {
        "headings": words("h1, h2, h3, h4"),
        "statements": words(".proof, .exercise, .solution"),
        "numbers": words(".caption-number, .eqno, .section-number"),
        "figures": [(figure.get("id"), figure.get("alt")) for figure in page.select("figure, img:not([src^=data])")],
        "outputs": words(".cell_output"),
        "links": [link["href"] for link in page.select("a[href]")],
        "ids": sorted(element["id"] for element in page.select("[id]")),
        "text": "".join(page.get_text().split()),
    }


def test_both_builds_have_the_same_pages(book, html, standard):
    for name in book.names:
        ours, theirs = (facts(folder / f"chapters/{name}.html") for folder in (html, standard))
        for fact in ours:
            assert theirs[fact] == ours[fact], f"{name}: {fact}"


BROKEN = ("{doc}`nowhere`", "{term}`no such term`", "{py:obj}`ng.nothing`", "[there](#nowhere-at-all)")


def test_a_broken_link_fails_both(root, jupyter_book, tmp_path):
    """In the toy book of tests/press, whose pages take seconds; both run its chapters from nothing."""
    toy = shutil.copytree(root / "tests/press/toy", tmp_path / "toy")
    shutil.copy(root / "_config.yml", toy)
    shutil.copytree(root / "chapters/_static", toy / "chapters/_static")
    page = toy / "chapters/index.md"
    page.write_text(page.read_text("utf-8") + f"\nSee {', '.join(BROKEN)}.\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(toy / "lib"), str(root / "lib")]))
        status, said, _ = jupyter_book(toy, tmp_path / "standard")
        done = subprocess.run([sys.executable, "-m", "press", "--root", toy, "pages"], capture_output=True, text=True)
    for code, text in ((status, said), (done.returncode, done.stdout + done.stderr)):
        assert code != 0
        for word in ("nowhere", "no such term", "ng.nothing", "nowhere-at-all"):
            assert word in text, text[-3000:]
