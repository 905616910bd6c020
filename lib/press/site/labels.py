"""What every reference reads as in the built book, for the notebooks that say the same without Sphinx."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

FILE = "labels.json"


def labels(env: BuildEnvironment) -> dict[str, dict[str, str]]:
    """Label → ``doc``, ``ref`` (how {ref}, {eq} or {prf:ref} reads) and ``numref`` (how {numref} reads)."""
    found = {}
    for label, (doc, _, title) in env.get_domain("std").labels.items():
        found[label] = {"doc": doc, "ref": title}
    for label, (doc, anchor) in env.get_domain("std").anonlabels.items():
        for kind, form in env.config.numfig_format.items():
            if number := _number(env, doc, kind, anchor):
                entry = found.setdefault(label, {"doc": doc})
                entry["numref"] = form % number
                # sphinx-exercise turns {ref} into {numref}.
                entry["ref"] = entry["numref"] if kind == "exercise" else entry.get("ref", entry["numref"])
    for label, (doc, _) in env.get_domain("math").data["objects"].items():
        number = _number(env, doc, "displaymath", f"equation-{label}")
        found[label] = {"doc": doc, "ref": f"({number})", "number": number}
    for label, proof in getattr(env, "proof_list", {}).items():
        number = _number(env, proof["docname"], proof["countertype"], label)
        found[label] = {"doc": proof["docname"], "ref": f"{proof['realtype'].title()} {number}".strip()}
    return found


def anchors(env: BuildEnvironment) -> dict[str, tuple[str, str]]:
    """Label → its page and the place in it."""
    std = {label: (doc, anchor) for label, (doc, anchor) in env.get_domain("std").anonlabels.items()}
    math = {label: (doc, f"equation-{label}") for label, (doc, _) in env.get_domain("math").data["objects"].items()}
    return std | math | {label: (proof["docname"], label) for label, proof in getattr(env, "proof_list", {}).items()}


def links(app: Sphinx, docname: str) -> Callable[[str], str]:
    """From a page: label → a link that reads as readers know it."""
    read, places = labels(app.env), anchors(app.env)

    def link(label: str) -> str:
        doc, anchor = places[label]
        words = escape(read[label].get("numref") or read[label]["ref"])
        return f'<a class="reference internal" href="{app.builder.get_relative_uri(docname, doc)}#{anchor}">{words}</a>'

    return link


def terms(env: BuildEnvironment) -> dict[str, str]:
    """Term of a glossary, in lower case → its page."""
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
