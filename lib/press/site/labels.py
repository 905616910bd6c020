"""The text of every reference in the built book, for the notebooks, which show the same text without Sphinx."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

FILE = "labels.json"


def labels(env: BuildEnvironment) -> dict[str, dict[str, str]]:
    """Return, by label, ``doc``, ``anchor`` and texts of references: ``ref`` ({ref}, {eq} or {prf:ref}), ``numref``."""
    std, found = env.get_domain("std"), {}
    for label, (doc, anchor) in std.anonlabels.items():
        entry = found[label] = {"doc": doc, "anchor": anchor}
        if label in std.labels:
            entry["ref"] = std.labels[label][2]
        for kind, form in env.config.numfig_format.items():
            if number := _number(env, doc, kind, anchor):
                entry["numref"] = form % number
                # sphinx-exercise turns {ref} into {numref}.
                entry["ref"] = entry["numref"] if kind == "exercise" else entry.get("ref", entry["numref"])
    for label, (doc, _) in env.get_domain("math").data["objects"].items():
        number = _number(env, doc, "displaymath", anchor := f"equation-{label}")
        found[label] = {"doc": doc, "anchor": anchor, "ref": f"({number})", "number": number}
    for label, proof in getattr(env, "proof_list", {}).items():
        number = _number(env, proof["docname"], proof["countertype"], label)
        words = f"{proof['realtype'].title()} {number}".strip()
        found[label] = {"doc": proof["docname"], "anchor": label, "ref": words}
    return found


def called(entry: dict[str, str]) -> str:
    """Return the name that readers see for a label."""
    return entry.get("numref") or entry["ref"]


def links(app: Sphinx, docname: str) -> Callable[[str], str]:
    """Return a function that makes a link from a page to a label, with the name that readers see."""
    known = labels(app.env)

    def link(label: str) -> str:
        address = f"{app.builder.get_relative_uri(docname, known[label]['doc'])}#{known[label]['anchor']}"
        return f'<a class="reference internal" href="{address}">{escape(called(known[label]))}</a>'

    return link


def terms(env: BuildEnvironment) -> dict[str, str]:
    """Return the page of each glossary term, by the term in lower case."""
    objects = env.get_domain("std").objects.items()
    return {name.lower(): doc for (kind, name), (doc, _) in objects if kind == "term"}


def _number(env: BuildEnvironment, doc: str, kind: str, anchor: str) -> str:
    return ".".join(map(str, env.toc_fignumbers.get(doc, {}).get(kind, {}).get(anchor, ())))


def write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        titles = {doc: title.astext() for doc, title in app.env.titles.items()}
        table = {"labels": labels(app.env), "terms": terms(app.env), "titles": titles}
        text = json.dumps(table, indent=1, sort_keys=True, ensure_ascii=False, default=str)
        Path(app.outdir).with_name(FILE).write_text(text + "\n", encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write)
