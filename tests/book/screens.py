"""Screens of 1000 pixels by kind of content, of each built page: python tests/book/screens.py [page ...]."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from walk import DESK, KINDS

PAGES = Path(__file__).parents[2] / "_build/html/chapters"


def main(names: list[str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=DESK)
        for path in [PAGES / f"{name}.html" for name in names] or sorted(PAGES.rglob("*.html")):
            page.goto(path.as_uri())
            page.evaluate("() => window.MathJax?.startup?.promise")
            found = page.evaluate(KINDS)
            screens = "  ".join(f"{kind} {height / 1000:5.1f}" for kind, height in found.items())
            print(f"{path.relative_to(PAGES).with_suffix('')!s:26}  {screens}  open code {found['code'] / found['all']:.1%}")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
