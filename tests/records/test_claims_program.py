"""Claims at many seeds: what is recorded is what the chapter judged, and a failing statement is told."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

pytestmark = pytest.mark.slow
TOY = Path(__file__).parents[1] / "press/toy"
PARAMETERS = """:tags: [parameters]

seed: int = 0  # of all"""
CHECK = """:tags: [check]
:verifies: [claim-right]
:measured-on: one number

import normgeom as ng

ng.verify("claim-right", [0.1, 0.2 * seed], 3 + seed, tol=0.5, asserts=False)"""


@pytest.fixture
def book(tmp_path) -> Path:
    """The toy book with one claim, of which a deviation is 0.4 of its bound a seed, and 0.2 at least."""
    root = shutil.copytree(TOY, tmp_path / "toy")
    path = root / "chapters/02-angle.md"
    head, *_ = path.read_text("utf-8").split("```{code-cell} ipython3\n")
    cells = (f"```{{code-cell}} ipython3\n{cell}\n```\n" for cell in (PARAMETERS, CHECK))
    path.write_text("\n".join((head, *cells)), "utf-8")
    return root


def run(root, *options):
    from records import claims

    folders = ["--root", root, "--folder", root / "figures/data", "--kept", root / "kept"]
    options = [str(o) for o in (*options, "--seeds", 3, "--processes", 2, *folders)]
    return CliRunner().invoke(claims.main, options)


def test_each_seed_is_judged_once(book):
    done = run(book)
    assert done.exit_code == 0, done.output
    table = pd.read_csv(book / "figures/data/claims-02.csv").set_index("seed")
    assert table.deviation.to_dict() == pytest.approx({0: 0.2, 1: 0.4, 2: 0.8}), "the worst of several, over the bound"
    assert table.mutant.to_dict() == pytest.approx({0: 6, 1: 8, 2: 10})
    kept = next((book / "kept").rglob("*-1.json"))
    kept.write_text('[["claim-right", 0.3, 1.0, 0.5]]')
    assert run(book).exit_code == 0
    again = pd.read_csv(book / "figures/data/claims-02.csv").set_index("seed")
    assert again.deviation[1] == pytest.approx(0.6), "a finished run was run again"


def test_a_statement_that_fails_at_a_seed_is_told_and_nothing_is_recorded(book):
    path = book / "chapters/02-angle.md"
    path.write_text(path.read_text("utf-8").replace('"claim-right", [', '"thm-mean", ['), "utf-8")
    (book / "figures/data/claims-02.csv").unlink()
    path.write_text(path.read_text("utf-8").replace("tol=0.5", "tol=0.3"), "utf-8")
    done = run(book)
    assert done.exit_code == 1
    assert "02-angle at seed 2" in done.output and "thm-mean" in done.output
    assert not (book / "figures/data/claims-02.csv").exists()


def test_a_page_without_claims_is_refused(book):
    done = run(book, "01-mean")
    assert done.exit_code == 1 and "pages: expected some of 02-angle, got 01-mean" in done.output
