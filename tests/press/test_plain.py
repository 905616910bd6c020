"""MyST to plain Markdown."""

import json
from dataclasses import replace

import click
import pytest
from press.book import CHAPTERS
from press.citations import citations
from press.plain import Plain


@pytest.fixture(scope="module")
def plain(made) -> Plain:
    built = json.loads((made / "_build/labels.json").read_text("utf-8"))
    sources = citations(made / CHAPTERS / "references.bib")
    return Plain("01-mean", **built, citations=sources, notebooks=["01-mean", "02-angle", "appendix/errata"])


CASES = {
    "(sec-project)=\n## Head\n": "## Head",
    "% to ourselves\ntext": "text",
    "```{math}\n:label: eq-mean\nx\n```": "$$\nx\n\\tag{1.1}\n$$",
    "$$ x $$ (eq-short)": "$$\nx\n\\tag{1.2}\n$$",
    "$$ x $$": "$$\nx\n$$",
    ":::{prf:theorem} T\n:label: thm-mean\nbody\n:::": "> **Theorem 1.1 (T).** body",
    ":::{prf:remark}\nbody\n:::": "> **Remark.** body",
    ":::{prf:proof}\nSo.\n\n$$\na\n$$ (eq-mean)\n:::": "> **Proof.** So.\n>\n> $$ a \\tag{1.1} $$",
    ":::{admonition} What $x$ is\n:class: tip\nbody\n:::": "> **What $x$ is.** body",
    ":::{exercise}\n:label: ex-shorter\nWhy?\n:::": "> **Exercise 1.1.** Why?",
    "::::{admonition} More\n:class: dropdown\n:::{admonition} Tip\nin\n:::\n::::": (
        "<details>\n<summary>More</summary>\n\n> **Tip.** in\n\n</details>"
    ),
    ":::{solution} ex-shorter\n:label: sol-shorter\nSo.\n:::": (
        "<details>\n<summary>Solution to Exercise 1.1</summary>\n\nSo.\n\n</details>"
    ),
    "```{figure} pic.svg\n:name: fig-dot\n:alt: a dot\nA dot.\n```": (
        "![a dot](../chapters/pic.svg)\n\n*Fig. 1.1.* A dot."
    ),
    ":::{image} pic.svg\n:class: opening\n:alt: a dot, drawn again below\n:::\nText": "Text",
    "- item\n\n  :::{admonition} Tip\n  in\n  :::\n": "- item\n\n  > **Tip.** in",
    "| a | {eq}`eq-mean` |\n|---|---|\n| {eq}`eq-mean` | {eq}`eq-short` |": (
        "| a | (1.1) |\n|---|---|\n| (1.1) | (1.2) |"
    ),
    "# On {eq}`eq-mean`": "# On (1.1)",
    "{prf:ref}`thm-mean` and {numref}`fig-dot` and {ref}`sec-project`": "Theorem 1.1 and Fig. 1.1 and Projecting",
    "{numref}`Figure %s <fig-dot>` in {ref}`here <sec-project>`": "Figure 1.1 in here",
    "{prf:ref}`claim-right`": "[Observation 2.1](02-angle.ipynb)",
    "{doc}`02-angle`, {doc}`/chapters/appendix/notation`": (
        "[The angle](02-angle.ipynb), [Notation](../chapters/appendix/notation.md)"
    ),
    "{doc}`appendix/ledger`, {doc}`names <appendix/reference>`": "[The ledger](../chapters/appendix/ledger.md), "
    "[names](../chapters/appendix/reference.md)",
    "{cite:p}`ba2016`": "([Ba et al., 2016](https://arxiv.org/abs/1607.06450))",
    "{cite:t}`godel`": "[Gödel and Noether (1931)](https://doi.org/10.1/toy)",
    "{term}`means <mean>`": "[means](../chapters/appendix/notation.md)",
    "{term}`Mean\n<mean>`, {term}`MEAN`": (
        "[Mean](../chapters/appendix/notation.md), [MEAN](../chapters/appendix/notation.md)"
    ),
    "`{eq}` in code, ``{eq}`eq-mean` `` too": "`{eq}` in code, ``{eq}`eq-mean` `` too",
    "```python\n:::{note}\n```": "```python\n:::{note}\n```",
    "A note.[^why] More.\n\n[^why]: By {eq}`eq-mean`.\n\nText": "A note. (By (1.1).) More.\n\nText",
}


@pytest.mark.parametrize(("myst", "expected"), CASES.items())
def test_renders(plain, myst, expected):
    assert plain.render(myst) == expected


UNKNOWN = {
    ":::{tab-set}\n:::": "no plain form for {tab-set}",
    ":::{prf:proof}\n```{mermaid} x\n```\n:::": "no plain form for {mermaid} x",
    "{download}`x`": "no plain form for {download}`x`",
    "A note.[^why]": "no plain form for the note why, which its own cell does not define",
    "{numref}`sec-project`": "no plain form for a reference to sec-project: it has no number",
    "[there](#sec-project)": "no plain form for the link (#sec-project)",
    "[there](02-angle.md)": "no plain form for the link (02-angle.md)",
}


@pytest.mark.parametrize(("myst", "message"), UNKNOWN.items())
def test_refuses_what_has_no_plain_form(plain, myst, message):
    with pytest.raises(click.ClickException) as refused:
        plain.render(myst)
    assert refused.value.message.startswith(f"01-mean: {message}")


def test_links_start_from_the_folder_of_the_notebook(plain):
    errata = replace(plain, page="appendix/errata")
    assert errata.render("{eq}`eq-mean`, {doc}`notation`") == (
        "[(1.1)](../01-mean.ipynb), [Notation](../../chapters/appendix/notation.md)"
    )
