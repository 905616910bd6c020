"""Claims at many seeds and chapters on other models: what their records go through, and rows that are refused."""

import shutil
from pathlib import Path

import pytest
import torch
from normgeom_lab.inference import SEVEN
from normgeom_lab.scale import PAPER
from press.book import Book
from transformers import GPT2Config, GPT2LMHeadModel

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
        chapters.verdicts_of("02-angle", tmp_path / "draft.ipynb", dict(seed=3), root=failing.root)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{chapter: 07-inference, name: mine}", "expected minutes in each row, got"),
        ("gpt2", "expected chapter in each row, got 'gpt2'"),
    ],
)
def test_rows_that_are_refused(tmp_path, row, said):
    path = tmp_path / "reruns.yml"
    path.write_text(f"- {row}\n", "utf-8")
    with pytest.raises(ValueError, match=said):
        list(chapters.rows_of(path))


def test_the_rows_of_the_book():
    known = load().experiments
    rows = list(chapters.rows_of(ROOT / "experiments/reruns.yml"))
    assert {f"{chapter}/{name}" for chapter, name, _, _ in rows} <= set(known)
    assert set(SEVEN) <= {given.get("model") for _, _, _, given in rows}, "the paper's table 1"
    called = {name for experiment in known.values() for name in experiment.called}
    assert {*PAPER["model"], *PAPER["pair"]} <= called, "a command of the page At scale is none"
    twins = known["07-inference/twins-5M"]
    assert set(twins.what) >= {"angles-twins-5M-layer", "nulls-twins-5M-rms", "observed-07-twins-5M"}
    assert twins.needs() == "wikitext-2-held-out.txt and _build/experiments/reruns/08-training/5M"
    assert known["07-inference/gpt2"].optional and not known["07-inference/gpt2"].needs()


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


@pytest.mark.slow
def test_a_model_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr(chapters, "KEPT", tmp_path)
    torch.manual_seed(0)
    sizes = dict(n_layer=2, n_embd=32, n_head=2, vocab_size=256, bos_token_id=None, eos_token_id=None)
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("the norm of the vector is its length, and the mean is its shadow\n" * 600)
    given = dict(model=str(tmp_path / "model"), corpus=str(tmp_path / "text.txt"), tokens=1500, directions=4)
    path = tmp_path / "reruns.yml"
    path.write_text(f"- {dict(chapter='07-inference', name='mine', minutes=1, **given)}\n", "utf-8")
    registry = Registry(tmp_path / "records", tmp_path / "kept")
    chapters.register_reruns(path, Book(ROOT), registry.experiment)
    (experiment,) = registry.select(["mine"])
    found = experiment.measure()
    assert set(found) == {"observed-07-mine", "angles-mine", "nulls-mine"} == set(experiment.what)
    assert found["angles-mine"].site.nunique() == 5 and set(found["angles-mine"].kind) == {"layer"}
    assert len(found["nulls-mine"]) == 2 * 3 * 5
    assert set(found["observed-07-mine"]) == {"claim", "deviation", "bound"}
    assert experiment.about["model"].count("/") == 1, "a path of this machine"
