"""The manifest of the toy book."""

import json

import pytest
from press.manifest import manifest

SHORT = "error ≤ 1e-12"


@pytest.fixture
def entries(book):
    return {entry["label"]: entry for entry in manifest(book)["statements"]}


def test_it_lists_what_is_stated_in_the_order_of_the_book(book, entries):
    assert [(label, entry["status"]) for label, entry in entries.items()] == [
        ("eq-mean", "checked numerically"),
        ("eq-short", "checked numerically"),
        ("def-centred", "definition"),
        ("thm-mean", "proved and checked"),
        ("eq-shorter", "proved and checked"),
        ("claim-right", "measured"),
        ("conj-always", "open"),
        ("eq-wrong", "checked numerically"),
    ]
    assert manifest(book)["pages"] == {
        "index": "A toy book",
        "01-mean": "The mean",
        "02-angle": "The angle",
        "appendix/notation": "Notation",
        "appendix/reference": "Reference",
        "appendix/errata": "Errata",
        "appendix/ledger": "The ledger",
        "appendix/bibliography": "Bibliography",
    }


def test_an_entry_is_whole(entries):
    assert entries["thm-mean"] == {
        "label": "thm-mean",
        "kind": "theorem",
        "title": "The norm $|x|$ shrinks",
        "page": "01-mean",
        "cell": 1,
        "part_of": None,
        "status": "proved and checked",
        "checks": [
            {
                "page": "01-mean",
                "cell": 3,
                "anchor": "check-01-mean-3",
                "measured_on": None,
                "functions": ["ng.center", "ng.secular.mean"],
                "printed": [{"holds": SHORT, "near_miss": "the mean | forgotten", "gave": "3e-02"}],
            }
        ],
        "seeds": None,
        "uses": [{"label": "eq-mean", "in": ["statement", "proof"]}],
        "used_by": [],
    }


def test_edges_go_both_ways(entries):
    assert entries["eq-mean"]["used_by"] == ["thm-mean"]
    assert [label for label, entry in entries.items() if entry["uses"]] == ["thm-mean"]
    assert entries["eq-shorter"]["part_of"] == "thm-mean"
    assert entries["claim-right"]["checks"][0]["measured_on"] == "eight toy vectors"


def test_the_built_one_adds_numbers_and_addresses(made, entries):
    built = json.loads((made / "_build/html/manifest.json").read_text("utf-8"))
    found = {entry["label"]: (entry["number"], entry["url"]) for entry in built["statements"]}
    assert found == {
        "eq-mean": ("(1.1)", "chapters/01-mean.html#equation-eq-mean"),
        "eq-short": ("(1.2)", "chapters/01-mean.html#equation-eq-short"),
        "def-centred": ("Definition 1.1", "chapters/01-mean.html#def-centred"),
        "thm-mean": ("Theorem 1.1", "chapters/01-mean.html#thm-mean"),
        "eq-shorter": ("(1.3)", "chapters/01-mean.html#equation-eq-shorter"),
        "claim-right": ("Observation 2.1", "chapters/02-angle.html#claim-right"),
        "conj-always": ("Conjecture 2.1", "chapters/02-angle.html#conj-always"),
        "eq-wrong": ("(1)", "chapters/appendix/errata.html#equation-eq-wrong"),
    }
    for entry in built["statements"]:
        page, anchor = entry["url"].split("#")
        assert f'id="{anchor}"' in (made / "_build/html" / page).read_text("utf-8")
        assert anchor == entry.pop("anchor")
        del entry["number"], entry["url"]
        for check in entry["checks"]:
            page, anchor = check.pop("url").split("#")
            assert f'id="{anchor}"' in (made / "_build/html" / page).read_text("utf-8")
    assert built["statements"] == list(entries.values()), "the rest is what was staged"
