"""Claims at many seeds: what their records go through, and what is judged."""

import shutil
from pathlib import Path

import pytest
from press.book import Book

from experiments import chapters, stamps
from experiments.__main__ import load
from experiments.registry import Registry

ROOT = Path(__file__).parents[2]
TOY = ROOT / "tests/press/toy"
PARAMETERS = """:tags: [parameters]

seed: int = 0  # of all"""
CHECK = """:tags: [check]
:verifies: [claim-right]
:measured-on: one number

import normgeom as ng

# a comment
ng.verify("claim-right", [0.1, 0.2 * seed], 3 + seed, tol=0.5, asserts=False)"""


@pytest.fixture
def book(tmp_path) -> Book:
    """The toy book with one claim, of which a deviation is 0.4 of its bound a seed, and 0.2 at least."""
    root = shutil.copytree(TOY, tmp_path / "toy")
    path = root / "chapters/02-angle.md"
    head, *_ = path.read_text("utf-8").split("```{code-cell} ipython3\n")
    cells = (f"```{{code-cell}} ipython3\n{cell}\n```\n" for cell in (PARAMETERS, CHECK))
    path.write_text("\n".join((head, *cells)), "utf-8")
    return Book(root)


def edit(book, old, new):
    path = book.root / "chapters/02-angle.md"
    assert old in path.read_text("utf-8")
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    return Book(book.root)


def registered(book, tmp_path):
    registry = Registry(tmp_path / "records", tmp_path / "kept")
    chapters.register_claims(book, registry.experiment)
    (experiment,) = registry.experiments.values()
    return experiment


def test_a_claim_goes_through_its_cells_and_what_they_call(book, tmp_path):
    experiment = registered(book, tmp_path)
    assert experiment.name == "claims-02" and len(experiment.points()) == 20
    stamp = experiment.stamp()
    assert stamp.keys() == {"claim-right", "normgeom.checks", *stamp.keys()}
    assert registered(edit(book, "# a comment", "# another"), tmp_path).stamp() == stamp
    changed = registered(edit(book, "0.2 * seed", "0.3 * seed"), tmp_path).stamp()
    assert [name for name in stamp if stamp[name] != changed[name]] == ["claim-right"]


@pytest.mark.slow
def test_what_is_judged_at_a_seed(book, tmp_path, monkeypatch):
    monkeypatch.setattr(chapters, "KEPT", tmp_path)
    experiment = registered(book, tmp_path)
    (row,) = experiment.measure(seed=2)
    assert row["deviation"] == pytest.approx(0.8), "the worst of several, over the bound"
    assert row["mutant"] == pytest.approx(10) and row["version"] == experiment.stamp()["claim-right"]
    failing = edit(edit(book, '"claim-right", [', '"thm-mean", ['), ", asserts=False", "")
    with pytest.raises(RuntimeError, match=r"^cell \d+: .*thm-mean"):
        chapters.verdicts_of("02-angle", tmp_path / "draft.ipynb", 3, failing.root)


def test_a_formula_of_the_library_makes_stale_and_a_comment_does_not(tmp_path, monkeypatch):
    """In a copy of the library."""
    for package in ("normgeom", "normgeom_lab"):
        skip = shutil.ignore_patterns("data", "notebooks", "__pycache__")
        shutil.copytree(ROOT / "lib" / package, tmp_path / package, ignore=skip)

    known = load().experiments
    names = ("claims-05", "sweep-placement", "training", "speed-norms")
    before = {name: known[name].stamp() for name in names}
    monkeypatch.setattr(stamps, "_root", lambda package: (ROOT if package == "experiments" else tmp_path) / package)
    path = tmp_path / "normgeom/norms/formula.py"
    text = path.read_text("utf-8")
    path.write_text(text.replace('"""', '"""Words. ', 1) + "\n# a comment\n", "utf-8")
    assert {name: known[name].stamp() for name in names} == before
    path.write_text(text.replace(".mean(", ".sum(", 1), "utf-8")
    for name in names:
        after = known[name].stamp()
        assert [module for module in after if after[module] != before[name][module]] == ["normgeom.norms.formula"]
