"""The norm report: chapter 7 run on a small model as one page, and what is left where it cannot be made."""

import errno
import io
import re
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
import torch
from nbformat import v4
from normgeom.commands import report
from transformers import GPT2Config, GPT2LMHeadModel

SEEN = """async () => {
    await MathJax.startup.promise;
    document.querySelectorAll('details').forEach(fold => { fold.open = true; });
    const all = selector => [...document.querySelectorAll(selector)];
    const images = all('img');
    images.forEach(image => { image.loading = 'eager'; });
    await Promise.allSettled(images.map(image => image.decode()));
    const text = document.body.cloneNode(true);
    text.querySelectorAll('script, style, pre, code').forEach(e => e.remove());
    return {
        set: all('mjx-container').filter(formula => formula.querySelector('svg')).length,
        wrong: all('[data-mml-node=merror], mjx-container [fill=red]').map(e => e.outerHTML),
        stops: all('mjx-container[tabindex]').length,
        broken: images.filter(image => !image.naturalWidth).length,
        overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        raw: text.textContent.match(/\\$|\\\\[a-z]+/g) || [],
    };
}"""
PHONE = {"width": 390, "height": 844}
OLD = "an older report"


class Page(HTMLParser):
    """A page's attributes by tag, its headings and its text outside and inside of folds."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags, self.shown, self.folded, self.open = [], "", "", []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("details", "script", "style"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, text):
        if not self.open:
            self.shown += text
        elif self.open[-1] == "details":
            self.folded += text

    def attributes(self, tag, name):
        return [attributes[name] for other, attributes in self.tags if other == tag and name in attributes]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A reader's folder with a model in it, and no network."""
    folder = tmp_path_factory.mktemp("work place")
    sizes = dict(n_layer=2, n_embd=32, n_head=2, n_positions=64, vocab_size=300, bos_token_id=None, eos_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(folder / "small-gpt2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.delenv("TQDM_DISABLE", raising=False)
        yield folder


def written(*arguments):
    """The path of a report and what went to standard error meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", io.StringIO())
        return report.write_report(*arguments), sys.stderr.getvalue()


@pytest.fixture(scope="module")
def made(workplace):
    before = datetime.now(UTC).replace(second=0, microsecond=0)
    path, told = written("./small-gpt2", "small.html", {"tokens": "1_500", "directions": "4"})
    return path, told, before


@pytest.fixture(scope="module")
def page(made):
    return Page(made[0])


@pytest.fixture(scope="module")
def chapter(root):
    return nbformat.read(root / "notebooks/07-inference.ipynb", as_version=4)


@pytest.fixture(scope="module")
def defaults(chapter):
    """The chapter's parameters, as its own cell sets them."""
    (cell,) = (cell for cell in chapter.cells if "parameters" in cell.metadata.get("tags", []))
    values = {}
    exec(cell.source, values)
    return {name: value for name, value in values.items() if not name.startswith("__")}


def test_the_head_says_what_was_measured_and_when(made, page, defaults):
    path, _, before = made
    html = path.read_text("utf-8")
    assert "<h1>Norm report: small-gpt2</h1>" in html, "the model's name without its folder"
    assert "<title>Norm report: small-gpt2</title>" in html
    rows = dict(re.findall(r"^<tr><td>(.*?)</td><td>(.*?)</td></tr>$", html, re.M))
    assert before <= datetime.fromisoformat(rows.pop("written, UTC")) <= datetime.now(UTC), "the time of writing"
    assert rows == {
        **{name: str(value) for name, value in defaults.items()},
        **{"model": "./small-gpt2", "tokens": "1500", "directions": "4"},
        **{name: metadata.version(name) for name in ("normgeom", "torch", "transformers", "tokenizers")},
        "python": sys.version.split()[0],
    }, "every parameter with the value it had, and the versions"


def test_the_chapter_s_text_is_there(page, chapter):
    text = [cell.source for cell in chapter.cells if cell.cell_type == "markdown"]
    headings = [heading for source in text for heading in re.findall(r"^#+ ([^$`\n]+)$", source, re.M)]
    assert len(headings) > 8
    assert [heading for heading in headings if heading not in page.shown] == [], "sections are missing"
    assert "Solution to Exercise 7.1" in page.folded


def test_what_the_cells_printed_is_shown(made, page, chapter):
    verified = {
        label
        for cell in chapter.cells
        if "check" in cell.metadata.get("tags", [])
        for label in re.findall(r'ng\.verify\(\s*"([\w-]+)"', cell.source)
    }
    assert len(verified) > 5
    for label in verified:
        assert f"{label}: " in page.shown, f"the verdict on {label} is not on the page"
    assert "reported, not asserted" in page.shown, "a claim about the book's models must not be asserted on another"
    rows = re.findall(r"<td[^>]*>((?:h\.\d\.)?ln_\w)</td>\s*<td[^>]*>LayerNorm</td>", made[0].read_text("utf-8"))
    assert rows == ["h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f"], "the table of the five norms"


def test_every_figure_is_in_the_page_with_its_words(made, page, chapter):
    drawn = sum(len(re.findall(r"^ *show\(", cell.source, re.M)) for cell in chapter.cells if cell.cell_type == "code")
    alts = page.attributes("img", "alt")
    frames = re.findall(r'<div class="explore-frames">(.*?)</div>', made[0].read_text("utf-8"), re.S)
    still = sum(cell.source.count("type_here(") for cell in chapter.cells if cell.cell_type == "code")
    assert len(alts) - sum(of_slider.count("<img") for of_slider in frames) == drawn + still > 2
    assert len(frames) == sum(cell.source.count("ng.explore(") for cell in chapter.cells) > 0
    assert all(len(alt) > 40 and re.search(r"\d", alt) for alt in alts), f"a figure without its numbers: {alts}"
    assert all(source.startswith("data:image/svg+xml") for source in page.attributes("img", "src"))


def test_code_is_not_there(page, chapter):
    for cell in chapter.cells:
        if cell.cell_type == "code":
            assert cell.source not in page.folded + page.shown, "code is on the page"
    assert 'model = "./small-gpt2"' not in page.folded + page.shown, "papermill's own cell is on the page"


def test_noise_is_told_to_the_terminal_and_not_to_the_page(made, page):
    _, told, _ = made
    assert "survey: 100%" in told, "no progress was shown"
    assert "has no tokenizer" in told, "a warning that the reader at the terminal needs"
    for noise in ("has no tokenizer", "Warning", "Loading weights", "it/s", "Executing"):
        assert noise not in page.shown, f"noise on the page: {noise}"


def test_no_link_is_dead_and_nothing_is_loaded(page):
    links, anchors = page.attributes("a", "href"), {attributes.get("id") for _, attributes in page.tags}
    assert any(link.startswith("https://") for link in links), "the sources lost their addresses"
    inside = [unquote(link.removeprefix("#")) for link in links if not link.startswith("https://")]
    assert set(inside) <= set(map(unquote, filter(None, anchors))), "links that lead nowhere"
    loads = [attributes for tag, attributes in page.tags if tag not in ("a",) and {"src", "href"} & set(attributes)]
    assert [a for a in loads if not (a.get("src") or a["href"]).startswith("data:")] == [], "not one file"


def seen_in(browser, path, **options):
    tab = browser.new_page(**options)
    complaints, requests = [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(path.resolve().as_uri())
    seen = tab.evaluate(SEEN)
    tab.close()
    return seen, complaints, [url for url in requests if not url.startswith("data:")]


@pytest.mark.parametrize("options", [{}, {"viewport": PHONE}, {"color_scheme": "dark"}], ids=["desk", "phone", "dark"])
def test_the_page_opens_from_disk(browser, made, options):
    path = made[0]
    seen, complaints, requests = seen_in(browser, path, **options)
    assert not complaints
    assert requests == [path.resolve().as_uri()], "more than the page itself was asked for"
    assert seen["set"] > 100, "formulas that are not typeset"
    assert (seen["wrong"], seen["raw"]) == ([], []), "LaTeX that MathJax or Markdown did not understand"
    assert seen["stops"] == 0, "MathJax's menu makes every formula a stop of the tab key, and can load more of MathJax"
    assert seen["broken"] == 0, "figures that do not show"
    assert seen["overflow"] <= 0, f"{seen['overflow']} pixels too wide"


# What can go wrong, on a notebook of a few cells.

PARAMETERS = 'model: str = "twins"  # a model\ncorpus: str = "stdlib"  # a text\ntokens: int = 20_000  # a < number\n'
SCRIPT = "<img src=x onerror=alert(1)>"
SHOWING = """
import sys
from IPython.display import display
from normgeom.view import table
print(model, repr(corpus), repr(tokens))
print("noise", file=sys.stderr)
table({model: {"|cos|": 0.25}}, first="norm")
display({"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'/>"}, metadata={"alt": f'"{model}'}, raw=True)
model
"""


@pytest.fixture
def toy(workplace, tmp_path, monkeypatch):
    """Makes the chapter a notebook with some text and one cell of code; gives the path of a report that is there."""

    def toy(code):
        cells = [
            v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
            v4.new_markdown_cell(
                "See [the **glossary**](../glossary.md) and [a source](https://arxiv.org).\n\n## Before"
            ),
            v4.new_code_cell(code),
            v4.new_markdown_cell("## After"),
        ]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
        nbformat.write(notebook, tmp_path / "toy.ipynb")
        monkeypatch.setattr(report, "CHAPTER", tmp_path / "toy.ipynb")
        monkeypatch.setattr(report, "load_config", lambda model: None)
        out = tmp_path / "reports/toy.html"
        out.parent.mkdir()
        out.write_text(OLD)
        return out

    return toy


def test_what_comes_from_outside_is_text(toy):
    out = toy(SHOWING)
    path, told = written(SCRIPT, str(out), {"tokens": "1e3", "corpus": "7"})
    assert path == out and list(out.parent.iterdir()) == [out]
    page = Page(out)
    assert f"{SCRIPT} '7' 1000.0\n" in page.shown, "not the values that were given"
    assert "noise" in told and "noise" not in page.shown
    assert page.attributes("img", "alt") == [f'"{SCRIPT}'], "a name became an element of the page"
    assert page.shown.count(SCRIPT) == 6, "title, heading, parameters, what was printed, the table and the result"


def test_links_to_other_files_keep_their_words_alone(toy):
    page = Page(written("x", toy("1"), {})[0])
    assert "See the glossary and a source." in page.shown
    assert [link for link in page.attributes("a", "href") if not link.startswith("#")] == ["https://arxiv.org"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 +", r"^report: chapter 7 failed \(invalid syntax .*\)$"),
        ("x = {}\nx['no key']", r"^report: chapter 7 failed \('no key'\)$"),
        ("raise ValueError(f'tokens: {tokens!r}')", r"^report: chapter 7 failed \(tokens: 'many'\)$"),
        ("import os\nos._exit(9)", r"^report: chapter 7 failed \(Kernel died\)$"),
    ],
)
def test_a_failing_cell_leaves_the_old_report(toy, code, message):
    out = toy(code)
    with pytest.raises(OSError, match=message):
        written("x", out, {"tokens": "many"})
    assert {path: path.read_text() for path in out.parent.iterdir()} == {out: OLD}


def test_a_full_disk_leaves_the_old_report_and_what_was_run(toy, tmp_path, monkeypatch):
    out = toy("1 + 1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(self, *_, **__):
        with open(self, "w") as file:
            file.write("<!doctype")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(
        OSError, match=rf"^out: {out} cannot be written \(.*No space left .*; the notebook .* {tmp_path}/n"
    ):
        report.write_report("x", out, {}, progress=False)
    monkeypatch.undo()
    (kept,) = tmp_path.glob("normgeom-*.ipynb")
    outputs = [output for cell in nbformat.read(kept, as_version=4).cells for output in cell.get("outputs", ())]
    assert [output.data["text/plain"] for output in outputs] == ["2"], "what the cells showed is lost"
    assert {path: path.read_text() for path in out.parent.iterdir()} == {out: OLD}


def test_what_a_kill_left_half_written_is_no_hindrance(toy):
    out = toy("1")
    out.with_name("toy.html.part").write_text("half")
    written("x", out, {})
    assert list(out.parent.iterdir()) == [out] and out.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("folder", [None, "one model", "a training"])
def test_a_folder_called_twins_is_not_passed_over(toy, tmp_path, monkeypatch, folder):
    """README's own line for training writes it."""
    out, looked_at = toy("print('model:', model)"), []
    monkeypatch.setattr(report, "load_config", looked_at.append)
    monkeypatch.chdir(tmp_path)
    places = {None: [], "one model": ["twins"], "a training": ["twins/layer/model", "twins/rms/model"]}[folder]
    for place in places:
        Path(place).mkdir(parents=True)
    page = Page(written("twins", out, {})[0])
    assert ("model: ./twins\n" if folder else "model: twins\n") in page.shown and looked_at == places
    assert "Norm report: twins" in page.shown


# What a model's folder could be called, or one of its modules.
PAYLOADS = [
    "<img src=x onerror=ran()>",
    "<svg onload=ran()>",
    "<script>ran()</script>",
    "<a href=javascript:ran()>x</a>",
    "<iframe srcdoc='<script>parent.ran()</script>'></iframe>",
    '"><script>ran()</script>',
    "</script><script>ran()</script>",
    "[x](javascript:ran())",
    "<style>@import'data:,x'</style><body onpageshow=ran()>",
    "$\\href{javascript:ran()}{x}$",
]
# Past every escape, as if a cell of the chapter had shown a name raw.
RAW = """
from IPython.display import HTML, Markdown, SVG, display
from normgeom.view import table
table({model: {"|cos|": 0.25, model: model}}, first=model)
print(model)
display(Markdown(model), HTML(model), HTML(f"<p title='{model}'>{model}</p>"))
display({"image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg'>{model}</svg>"}, metadata={"alt": model}, raw=True)
"""


@pytest.mark.slow
def test_no_name_runs_a_script(toy, browser):
    out = toy(RAW)
    out.write_text("<p id=seen></p><script>document.querySelector('#seen').click(); ran()</script>")
    ran = []

    def opened():
        tab = browser.new_page()
        tab.expose_function("ran", lambda: ran.append(payload))
        tab.goto(out.resolve().as_uri())
        tab.evaluate("document.querySelectorAll('a').forEach(link => link.click())")
        tab.wait_for_timeout(300)
        tab.close()

    payload = "the alarm itself"
    opened()
    assert ran == [payload], "the test would not see a script that runs"
    for payload in PAYLOADS:
        written(payload, out, {})
        opened()
    assert ran[1:] == []
