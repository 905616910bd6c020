"""The block parser."""

from press.myst import blocks, roles, walk


def kinds(text):
    return [(block.kind, block.name or block.label) for block, _ in walk(text)]


def test_nested_fences_of_both_kinds():
    text = ":::::{prf:theorem} A *title*\n:label: thm-a\n\n::::{note}\n```{math}\n:label: eq-a\nx\n```\n::::\n:::::\n"
    outer, *_ = blocks(text)
    assert (outer.name, outer.argument, outer.label) == ("prf:theorem", "A *title*", "thm-a")
    assert (outer.start, outer.end) == (0, 10)
    assert [(b.name, tuple(outer.name for outer in inside)) for b, inside in walk(text) if b.kind == "directive"] == [
        ("prf:theorem", ()),
        ("note", ("prf:theorem",)),
        ("math", ("prf:theorem", "note")),
    ]


def test_labels_of_every_spelling():
    text = "(sec-a)=\n# A\n\n$$ x $$ (eq-a)\n\n```{math}\n---\nlabel: eq-b\n---\ny\n```\n"
    text += "\n```{figure} a.svg\n:name: fig-a\n```"
    assert [block.label for block in blocks(text) if block.label] == ["sec-a", "eq-a", "eq-b", "fig-a"]


def test_code_and_mathematics_hold_no_blocks():
    assert kinds("```python\n:::{note}\n{eq}`a`\n:::\n```") == []
    assert kinds("```{math}\n:label: eq-a\n:::{note}\n:::\n```") == [("directive", "math")]


def test_a_role_quoted_in_a_code_span_is_text():
    assert list(roles("`{eq}` and {eq}`eq-a`, ``{eq}`eq-b` ``", "eq")) == ["eq-a"]
