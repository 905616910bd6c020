"""What is stated, what is proved, what is checked."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from press.book import Page
from press.labels import Claims, Verdict, page_statements, verdicts


def page(*cells):
    return Page("02-x", True, new_notebook(cells=list(cells)))


def stated(text):
    return {s.label: s for s in page_statements(page(new_markdown_cell(text)))}


def test_statements_of_the_toy_book(book):
    found = {s.label: s for s in Claims(book).statements}
    assert found["thm-mean"].title == "The norm $|x|$ shrinks"
    assert found["fig-dot"].cell == 4
    assert {label for label, s in found.items() if s.proved} == {"thm-mean", "eq-shorter"}
    assert {found[label].kind for label in ("eq-mean", "eq-short", "eq-shorter")} == {"equation"}
    assert [found[label].kind for label in ("thm-mean", "claim-right", "tab-squares")] == [
        "theorem",
        "observation",
        "table",
    ]


def test_a_proof_is_credited_to_the_statement_before_it():
    text = ":::{prf:lemma} A\n:label: lem-a\n:::\n\n:::{prf:lemma} B\n:label: lem-b\n:::\n"
    text += "\nSo:\n\n:::{prf:proof}\nx\n:::\n"
    found = stated(text)
    assert found["lem-b"].proved
    assert not found["lem-a"].proved


A = ":::::{prf:lemma} A\n:label: lem-a\n\n::::{note}\n$$a$$ (eq-in-a)\n::::\n:::::\n\n"
USING = "::::{prf:proof}\nBy {eq}`eq-before`, {eq}`words <eq-in-a>` and {prf:ref}`lem-b`\n\n$$c$$ (eq-inside)\n::::\n\n"
B = ":::{prf:lemma} B, see {eq}`eq-before`\n:label: lem-b\nAs {prf:ref}`lem-a`.\n:::\n"
TEXT = "$$b$$ (eq-before)\n\n" + A + USING + B


def test_equations_in_a_statement_and_in_its_proof_are_part_of_it_and_proved():
    found = stated(TEXT)
    assert {label: s.part_of for label, s in found.items() if s.part_of} == {"eq-in-a": "lem-a", "eq-inside": "lem-a"}
    assert {label for label, s in found.items() if s.proved} == {"lem-a", "eq-in-a", "eq-inside"}


def test_a_proof_uses_what_it_refers_to_and_does_not_prove_it():
    found = stated(TEXT)
    (proof,) = found["lem-a"].proofs
    assert proof.cites == ["lem-b", "eq-before", "eq-in-a"]
    assert proof.before == 3
    assert not found["eq-before"].proved


def test_a_statement_refers_to_what_its_title_and_its_text_name():
    assert stated(TEXT)["lem-b"].cites == ["lem-a", "eq-before"]
    assert stated(TEXT)["lem-a"].cites == []


def test_checks_of_the_toy_book(book):
    first, claim, _ = Claims(book).checks
    assert first.verifies == ["eq-mean", "eq-short", "eq-shorter", "thm-mean"]
    assert claim.measured_on == "eight toy vectors"


def test_verdicts_are_read_from_stdout_alone():
    def printed(text, name="stdout"):
        return verdicts(nbformat.NotebookNode(outputs=[new_output("stream", name=name, text=text)]))

    line = "eq-a: error ≤ 1e-12; with ε outside the root 3e-02"
    assert printed(f"hello\n{line}\n") == [Verdict("eq-a", "error ≤ 1e-12", "ε outside the root", "3e-02")]
    line = "claim-a: error ≤ 0.1; with a > b > 0.1\n"
    assert printed(line) == [Verdict("claim-a", "error ≤ 0.1", "a > b", "> 0.1")]
    assert printed("eq-a: error ≤ 1e-12\n") == [Verdict("eq-a", "error ≤ 1e-12")]
    assert printed(line, name="stderr") == []


def test_a_line_may_arrive_in_pieces():
    pieces = [new_output("stream", name="stdout", text=text) for text in ("eq-a: error ≤ 1; w", "ith a b 2\n")]
    assert verdicts(new_code_cell("", outputs=pieces)) == [Verdict("eq-a", "error ≤ 1", "a b", "2")]
