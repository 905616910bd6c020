"""Exercises and the course kit as the press reads them: what asks for code, what is refused, what the page says."""

import sys

import pytest
from bs4 import BeautifulSoup
from press.book import Book
from press.course import asked_of_nothing, course, lectures
from press.exercises import unmatched_grader
from press.site.slides import deck, shown

LIBRARY = """
class Exercise:
    def __init__(self, **mistakes):
        self.mistakes = mistakes["mistakes"]

angle = Exercise(mistakes={"a | slip. Mend it.": None})
"""
CHAPTER = """# A chapter

## Exercises

```{exercise}
:label: ex-thought
Why is `hidden_states` longer?
```

```{solution} ex-thought
Because of `ng.angle(x)`, see there.
```

```{exercise}
:label: ex-code
Write the angle; `exercises.angle` judges it.
```

```{code-cell} ipython3
pass
```

## What comes next
"""
COURSE = """
lectures:
  - title: One
    aims: [see it]
    words: [$a$ is a letter.]
    before: Nothing.
    parts:
      - {title: A part, minutes: 40, show: [{fig-a: Look.}]}
      - {title: Another, minutes: 50, show: [{prop-b: Prove.}]}
    prove: [prop-b]
    run: All.
    exercises: [ex-code]
    after: One minute.
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Writes a book of one chapter and one lecture, some words replaced."""
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.delitem(sys.modules, "tiny_lab", raising=False)
    monkeypatch.delitem(sys.modules, "tiny_lab.exercises", raising=False)

    def write(chapter=CHAPTER, lessons=COURSE):
        for name, text in {
            "pyproject.toml": '[project]\nname = "tiny"\n',
            "_toc.yml": "format: jb-book\nroot: chapters/01-a\n",
            "chapters/01-a.md": chapter,
            "chapters/course.yml": lessons,
            "lib/tiny/__init__.py": "",
            "lib/tiny_lab/__init__.py": "",
            "lib/tiny_lab/exercises.py": LIBRARY,
        }.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Book(tmp_path)

    return write


def test_graders_and_exercises_name_each_other(small):
    assert not list(unmatched_grader(small(), None))
    other = small(CHAPTER.replace("exercises.angle", "exercises.angles"))
    unknown, unasked = unmatched_grader(other, None)
    assert unknown == "01-a: ex-code names exercises.angles, which is not a self-check"
    assert unasked == "exercises.angle is a self-check that no exercise names"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("exercises: [ex-code]", "exercises: [ex-c]", "ex-c is not an exercise"),
        ("prove: [prop-b]", "prove: [prop-c]", "prop-c is to be proved, but no slide shows it"),
    ],
)
def test_what_the_course_asks_of_nothing_is_refused(small, old, new, said):
    assert not list(asked_of_nothing(small(), None))
    (message,) = asked_of_nothing(small(lessons=COURSE.replace(old, new)), None)
    assert message.endswith(said)


def test_the_kit_has_what_students_get_wrong(small):
    page = course(small())
    assert ":name: course-words-1\n\n- $a$ is a letter.\n" in page
    assert "| 40 to 90 | Another | {prf:ref}`prop-b`: Prove. |" in page
    assert "{ref}`ex-code`, `exercises.angle`:" in page and "| a \\| slip | Mend it. |" in page
    assert '<a href="../../course/lecture-1.html">' in page


BUILT = """<html><head><link href="../../_static/book.css" rel="stylesheet"/></head>
<section id="other"><div>an earlier one</div></section>
<figure id="fig-a"><img src="../_images/a.svg"/><script>"<figure>"</script></figure>
<div class="proof" id="prop-b"><div id="proof-content"><a href="#other">here</a> <a href="02.html#x">there</a></div>
</div>
<div class="exercise admonition" id="ex-code"><p>Write.</p></div>
<div class="cell docutils"><div>code</div></div>
<div class="solution">no</div>
<div class="container" id="course-words-1"><ul><li>a is a letter.</li></ul></div></html>"""


PARSED = BeautifulSoup(BUILT, "html.parser")


def test_an_element_is_cut_out_whole_and_its_addresses_hold_among_the_slides():
    cut = {name: shown(PARSED, name, "chapters/01.html") for name in ("fig-a", "prop-b", "ex-code")}
    assert '"<figure>"</script></figure>' in cut["fig-a"] and '"../_images/a.svg"' in cut["fig-a"]
    assert '"../chapters/01.html#other"' in cut["prop-b"] and '"../chapters/02.html#x"' in cut["prop-b"]
    assert "proof-content" not in cut["prop-b"], "an id that each statement has"
    assert "<div>code</div>" in cut["ex-code"] and "solution" not in cut["ex-code"]
    assert "proof-content" in str(PARSED), "the page itself is changed"


def test_a_deck_has_each_label_once_in_order(small):
    (lecture,) = lectures(small())
    labels = ("fig-a", "prop-b", "ex-code")
    places = {label: {"doc": "chapters/01", "anchor": label, "ref": f"<{label}>"} for label in labels}
    html = deck(lecture, places, lambda page: PARSED)
    order = [html.index(f'id="slide-{name}"') for name in ("aims", "words", "fig-a", "prop-b", "ex-code")]
    assert order == sorted(order)
    assert "5 / 5" in html and "a is a letter" in html and "minutes 40 to 90" in html and "&lt;fig-a&gt;" in html
    assert '<link href="../_static/book.css" rel="stylesheet"/>' in html
