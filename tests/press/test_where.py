"""Where things stand: each answer names a file and the very line."""

import pytest
from click.testing import CliRunner
from press.book import Book
from press.cli import main
from press.where import where

CHAPTER = "chapters/02-mean.md"
CELL = """
```{code-cell} ipython3
import toy as ng
from toy.view.draw import draw as paint
```

```{code-cell} ipython3
size = 3 * ng.Box(d).fill(1.0)
```

```{code-cell} ipython3
drawn = paint(a=size)
```

```{code-cell} ipython3
:tags: [hide-input]
:verifies: [eq-mean]

other = 5
print(drawn, ng.center([1.0]), [other for other in (1, 2)])
```
"""
CLI = '''"""The command."""

import click


@click.command()
def take_away(x):
    """A command."""
    from toy.norms import center

    return center(x)
'''


def text_at(root, line):
    file, number, words = line.split(":", 2)
    return (root / file).read_text("utf-8").splitlines()[int(number) - 1], words.strip()


def answers(root, what):
    return [text_at(root, line) for line in where(Book(root), what)]


@pytest.mark.parametrize("what", ["eq-mean", "(2.1)", "Equation 2.1"])
def test_a_statement_is_found_by_label_and_by_number(made, what):
    assert answers(made, what) == [
        (":label: eq-mean", "stated"),
        ("x = [float(i * i) for i in range(d)]  # ng.center, ng.secular.mean, ng.verify", "checked"),
    ]


def test_the_short_form_of_a_formula(made):
    assert answers(made, "eq-short")[0] == (r"$$ \mu = \langle u, x \rangle $$ (eq-short)", "stated")


@pytest.mark.parametrize("what", ["Fig. 2.1", "Figure 2.1", "fig-dot"])
def test_a_figure(made, what):
    assert answers(made, what) == [("from IPython.display import display", "drawn")]


def test_a_table(made):
    assert answers(made, "Table 2.1")[0] == ('print("before the table")', "drawn")
    assert answers(made, "Table 2.1") == answers(made, "tab-squares")


def test_what_stands_behind_a_cell(copy):
    with open(copy / CHAPTER, "a", encoding="utf-8") as file:
        file.write(CELL)
    found = answers(copy, "eq-mean")[2:]
    assert found == [
        ("other = 5", "checked"),
        ("drawn = paint(a=size)", "makes drawn"),
        ("size = 3 * ng.Box(d).fill(1.0)", "makes size"),
        ("class Box(tuple):", "Box"),
        ("def center(x: list[float], *, times: int = 1, tol: float = 1e-12) -> list[float]:", "center"),
        ("def draw(**values):", "draw"),
    ], "names that the cell makes itself do not count; those of the cells before it do"


def test_a_name_of_the_library(made):
    assert answers(made, "ng.center") == answers(made, "center")
    assert answers(made, "center")[0][1] == "center"


def test_a_command(copy):
    (copy / "lib/toy/cli.py").write_text(CLI)
    for what in ("take-away", "toy take-away"):
        (_, options), (code, name) = answers(copy, what)
        assert options == "the command's options" and name == "center" and code.startswith("def center(")


def test_the_command_line(made, copy):
    said = CliRunner().invoke(main, ["--root", str(made), "where", "Fig.", "2.1"])
    assert said.exit_code == 0 and said.output.startswith(f"{CHAPTER}:") and said.output.endswith("drawn\n")
    said = CliRunner().invoke(main, ["--root", str(made), "where", "eq-nothing"])
    assert said.exit_code == 1 and "nothing is called eq-nothing" in said.output
