"""What is alive in the pages: its numbers against torch's, its slips, the hand on it, and what goes wrong."""

import re

import live
import pytest
import torch

TOLERANCE = 1e-9  # of double precision through four blocks; float32 would show 1e-5
SCRIPTS = ("norms", "page", "hold")


@pytest.fixture(scope="module")
def made():
    return live.models()


@pytest.fixture(scope="module")
def blank(browser):
    """A page with nothing on it."""
    page = browser.new_page()
    yield page
    page.close()


def holding(book):
    """The scripts of a norm to hold."""
    return "".join((book.root / f"chapters/_live/{name}.js").read_text("utf-8") for name in SCRIPTS)


def load(page, text):
    page.evaluate("globalThis.nets = undefined")
    page.add_script_tag(content=text)


def test_the_network_computes_what_torch_does(blank, book, made):
    """Logits, looks at every norm before and after, effects and divergence, on 50 drawn texts and settings."""
    load(blank, live.script(book))
    cases = list(live.draw(50, seed=0))
    for case, got in zip(cases, live.by_script(blank, cases), strict=True):
        error = live.farthest(got, live.by_torch(made, case))
        assert error < TOLERANCE, f"{error:.1e} at {len(case.ids)} bytes, {vars(case) | dict(ids='…')}"


def test_gauge_conversion_and_freezing(blank, book):
    """Each as its theorem says, with a near miss."""
    load(blank, live.script(book))
    text = list(b"The argument is ignored")
    base = dict(ids=text, token=32)
    runs = dict(
        plain=dict(model="layer"),
        gauge=dict(model="layer", shift=20),
        converted=dict(model="converted"),
        held=dict(model="layer", held=True),
        rms=dict(model="rms"),
        shifted_rms=dict(model="rms", shift=20),
        shifted_converted=dict(model="converted", shift=20),
        held_and_removed=dict(model="layer", held=True, removed="h.1.mlp"),
        removed=dict(model="layer", removed="h.1.mlp"),
    )
    got = live.by_script(blank, [live.Case(**base, **changes) for changes in runs.values()])
    logits = {name: one["logits"] for name, one in zip(runs, got, strict=True)}

    def apart(a, b):
        return (torch.tensor(logits[a], dtype=torch.float64) - torch.tensor(logits[b], dtype=torch.float64)).abs().max()

    assert apart("plain", "gauge") < TOLERANCE < 0.1 < apart("rms", "shifted_rms"), "prop-gauge"
    assert apart("plain", "converted") < TOLERANCE < 0.1 < apart("plain", "shifted_converted"), "thm-to-rms-norm"
    assert apart("plain", "held") < TOLERANCE < 1e-3 < apart("removed", "held_and_removed"), "thm-attribution"
    shares = live.by_script(blank, [live.Case(text, "layer", part=part, token=32) for part in live.PARTS])
    bias = blank.evaluate(
        """([token]) => { const { weights: w, width: d, vocabulary: V } = nets.layer;
          return [...w["ln_f.bias"]].reduce((sum, b, i) => sum + b * (w["wte.weight"][token * d + i]
            - Array.from({ length: V }, (_, j) => w["wte.weight"][j * d + i] / V).reduce((a, v) => a + v)), 0); }""",
        [32],
    )
    row = logits["plain"][-1]
    above = row[32] - sum(row) / len(row)
    frozen, direct = (sum(one["effects"][k] for one in shares) for k in (0, 1))
    assert abs(frozen + bias - above) < TOLERANCE < 1e-3 < abs(direct + bias - above), "thm-attribution: parts add up"


def test_a_norm_to_hold_computes_what_torch_does(blank, book):
    load(blank, holding(book))
    settings = list(live.draw_held(50, seed=0))
    for state, got in zip(settings, blank.evaluate(live.HELD, settings), strict=True):
        error = live.farthest_held(got, live.held_by_torch(state))
        assert error < 1e-8, f"{error:.1e} at {state}"


@pytest.fixture
def open_page(browser, html):
    """Open a page of the book and wait until what is alive in it stands; nothing may be asked of the network."""
    opened = []

    def open_page(name, mark, setup=None, **context):
        page = browser.new_context(**{"viewport": dict(width=1000, height=900), **context}).new_page()
        opened.append(page)
        page.asked, page.errors = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        if setup:
            setup(page)
        page.goto((html / f"chapters/{name}.html").as_uri())
        page.locator(mark).first.scroll_into_view_if_needed()
        return page

    yield open_page
    for page in opened:
        assert not [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))], page.asked
        assert not page.errors, page.errors
        page.context.close()


def standing(page, mark):
    """What is alive at a mark, once it stands."""
    page.wait_for_function(f"document.querySelector('{mark}')?.live")
    return page.locator(mark).first


def settled(page):
    """Wait until what was asked for has been drawn: a drawing takes one frame."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def spoken(page, host):
    """What a screen reader says once the hand rests, which is half a second."""
    settled(page)
    page.evaluate("() => new Promise((done) => setTimeout(done, 600))")
    return host.locator(".live-spoken").text_content()


def entries(host):
    return host.evaluate("(host) => [...host.live.state.x]")


PHONE = dict(viewport=dict(width=390, height=844), has_touch=True, is_mobile=True)


def pulled(page, handle, steps=8):
    """Where a finger that pulls a handle straight up by 32 pixels leaves the page: how far it has scrolled."""
    box, client = handle.bounding_box(), page.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = page.evaluate("scrollY")
    for step in range(steps + 1):
        touch = dict(type="touchMove" if step else "touchStart", touchPoints=[dict(x=x, y=y - 4 * step)])
        client.send("Input.dispatchTouchEvent", touch)
    client.send("Input.dispatchTouchEvent", dict(type="touchEnd", touchPoints=[]))
    settled(page)
    return page.evaluate("scrollY") - before


@pytest.mark.parametrize("name", ["index", "02-uniform-vector", "03-hyperellipsoid", "05-jacobians"])
def test_a_finger_moves_x_up_and_not_the_page(open_page, name):
    page = open_page(name, ".hold", **PHONE)
    host = standing(page, ".hold")
    host.locator("svg").evaluate("(svg) => svg.scrollIntoView({ block: 'center' })")
    place = host.locator(".handle").bounding_box()
    assert pulled(page, host.locator(".handle")) == 0, "the page scrolls under the finger"
    assert place["y"] - host.locator(".handle").bounding_box()["y"] == pytest.approx(32, abs=1), "x does not follow it"


def test_x_moves_by_mouse_and_keyboard(open_page):
    page = open_page("02-uniform-vector", ".hold")
    host = standing(page, ".hold")
    handle, svg = host.locator(".handle"), host.locator("svg")
    before, words, label = entries(host), spoken(page, host), svg.get_attribute("aria-label")
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y - 20, steps=4)
    page.mouse.up()
    settled(page)
    moved = entries(host)
    assert moved != before, "the hand does not move x"
    assert spoken(page, host) != words and svg.get_attribute("aria-label") != label, "the words stay behind"
    handle.focus()
    page.keyboard.press("PageUp")
    settled(page)
    steps = [a - b for a, b in zip(entries(host), moved, strict=True)]
    assert min(steps) > 0.05 and max(steps) - min(steps) < 1e-9, "Page Up moves along (1, 1, 1)"
    page.keyboard.press("ArrowLeft")
    settled(page)
    assert entries(host) != moved
    page.keyboard.press("Home")
    settled(page)
    assert entries(host) == before, "Home puts x back"


SMALL = """(host) => [...host.querySelectorAll("button, select, input, textarea")].filter((e) => {
    const typed = e.matches("select, textarea, [type=number]"), hit = e.type === "checkbox" ? e.parentElement : e;
    return e.checkVisibility() && (hit.getBoundingClientRect().height < 40 ||
        (typed && parseFloat(getComputedStyle(e).fontSize) < 16));
}).map((e) => e.outerHTML)"""


@pytest.mark.parametrize(
    ("name", "mark"), [("index", "#moving-steps"), ("02-uniform-vector", ".hold"), ("type-here", ".network")]
)
def test_controls_fit_a_finger(open_page, name, mark):
    page = open_page(name, mark, **PHONE)
    host = page.locator(mark).first
    host.locator("button").first.wait_for()
    assert host.locator("input").count() > 1 and host.evaluate(SMALL) == []
    assert host.evaluate("(host) => host.scrollWidth <= host.clientWidth")


def test_the_text_below_a_moving_picture_stays(open_page):
    for width in (390, 1300):
        page = open_page("index", "#moving-steps button", viewport=dict(width=width, height=900))
        slider, host = page.get_by_label("Steps of LayerNorm"), page.locator("#moving-steps")
        heights = set()
        for step in range(4):
            slider.fill(str(step))
            heights.add(host.bounding_box()["height"])
        assert len(heights) == 1, f"at {width} pixels a caption moves what is below it: {heights}"


def test_bytes_bars_and_shares_are_columns(open_page):
    page = open_page("type-here", ".network", **PHONE)
    standing(page, ".network")
    rows = [
        [part.bounding_box() for part in row.locator("> *").all()] for row in page.locator(".network-next li").all()
    ]
    for left, right in ((0, 1), (1, 2)):
        ends = [row[left]["x"] + row[left]["width"] for row in rows]
        assert max(ends) <= min(row[right]["x"] for row in rows), "a column over another"


CLOSE = """(host) => {  // of a line's height letters take 0.7
    const boxes = [...host.querySelectorAll("svg text, svg .dot.x")].map((e) => e.getBoundingClientRect());
    return boxes.some((a, i) => boxes.slice(0, i).some((b) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top + 0.15 * a.height < b.bottom - 0.15 * b.height - 1
        && b.top + 0.15 * b.height < a.bottom - 0.15 * a.height - 1));
}"""
ASKED = [  # by a page, each something else
    ("index", "front", 1),
    ("02-uniform-vector", "norm", 2),
    ("03-hyperellipsoid", "ellipse", 4),
    ("05-jacobians", "jacobian", 4),
]


@pytest.mark.parametrize(("name", "show", "number"), ASKED)
def test_every_question_is_set_up_and_answered(open_page, name, show, number):
    """The answer waits for a guess; names in the picture never overprint each other, nor a dot."""
    mark = f'.hold[data-show="{show}"]'
    page = open_page(name, mark)
    host = standing(page, mark)
    question, answer = host.locator(".live-question"), host.locator("p[role=status]:not(.live-spoken)")
    asked = set()
    while question.inner_text() not in asked:
        asked.add(question.inner_text())
        before = host.locator("svg").get_attribute("aria-label")
        assert not answer.inner_text(), "the answer comes before the guess"
        guess = host.locator(".live-guesses button").last
        guess.click()
        settled(page)
        assert (
            guess.get_attribute("aria-pressed") == "true" and not host.locator("[aria-pressed=true] + button").count()
        )
        assert answer.inner_text() and host.locator("svg").get_attribute("aria-label") != before
        assert "NaN" not in host.locator("svg").inner_html() and not host.evaluate(CLOSE)
        if number > 1:
            host.get_by_text("Next question").click()
            settled(page)
    assert len(asked) == number


@pytest.mark.parametrize(("name", "number"), [("type-here", 5), ("07-inference", 3)])
def test_a_network_asks_what_its_controls_can_answer(open_page, name, number):
    page = open_page(name, ".network")
    host = standing(page, ".network")
    assert host.locator(".live-question").inner_text().startswith(f"1 of {number}.")
    drawn = host.locator(".network-chart").get_attribute("aria-label")
    assert not host.locator(".network-effect").is_visible(), "the answer comes before the guess"
    host.locator(".live-guesses button").first.click()
    settled(page)
    assert host.locator(".network-effect").is_visible()
    assert host.locator(".network-chart").get_attribute("aria-label") != drawn


def test_a_field_takes_numbers_alone(open_page):
    page = open_page("02-uniform-vector", ".hold")
    host = standing(page, ".hold")
    before = entries(host)
    field = host.locator('input[type="number"]').first
    for wrong in ("", "1e9", "-1e300"):
        field.fill(wrong)
        settled(page)
        assert "expected a number" in host.locator(".live-warning").text_content(), wrong
        assert entries(host) == before and field.get_attribute("aria-invalid") == "true"
    field.press_sequentially("NaN")
    assert entries(host) == before
    for at, entry in enumerate((0, 0, 0)):
        host.locator('input[type="number"]').nth(at).fill(str(entry))
    settled(page)
    assert not host.locator(".live-warning").text_content(), "zero is a vector as any other"
    assert "angle to (1, 1, 1) none" in host.locator("svg").get_attribute("aria-label")
    assert "NaN" not in host.inner_text()


def test_what_is_typed_is_read(open_page):
    page = open_page("type-here", ".network")
    host = standing(page, ".network")
    area, words = host.locator("textarea"), lambda: host.locator(".live-said").text_content()
    heard, drawn = spoken(page, host), host.locator(".network-chart").get_attribute("aria-label")
    area.fill("")
    settled(page)
    assert words().startswith("Type something") and not host.locator(".network-chart").is_visible()
    area.fill("x" * 10_000)
    settled(page)
    assert words() == "It reads the last 128 bytes of 10000."
    assert host.locator(".network-strip button").count() == 128
    area.fill("a 🙂\x07\x00é")
    settled(page)
    shown = host.locator(".network-strip").evaluate("(strip) => [...strip.children].map((b) => b.textContent)")
    assert shown == ["a", "␣", "F0", "9F", "99", "82", "07", "00", "C3", "A9"]
    assert "NaN" not in host.inner_text()
    area.fill("class ")
    assert spoken(page, host) != heard and host.locator(".network-chart").get_attribute("aria-label") != drawn
    items = host.locator(".network-next li").all()
    shares = [float(re.search(r"[\d.]+(?= %)", item.text_content())[0]) for item in items]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 100.1


def test_each_change_is_told(open_page):
    """The gauge moves nothing, dropping the subtraction something, and a removed part has its three numbers."""
    page = open_page("type-here", ".network")
    host = standing(page, ".network")
    effect = host.locator(".network-effect")

    def after(**changes):
        host.evaluate("(host, changes) => host.live.change(changes)", changes)
        settled(page)
        return effect.text_content(), host.evaluate("(host) => host.live.found.divergence")

    assert "from that of the unchanged network" in after()[0], "a page starts with the change that it asks about"
    assert after(shift=0)[0] == "The network is unchanged."
    assert after(shift=10)[1] < 1e-12
    assert after(uncentred="everywhere")[1] > 1e-3
    after(model="rms")
    host.locator("button", has_text="undo all changes").click()
    settled(page)
    assert effect.text_content() == "The network is unchanged."
    assert host.evaluate("(host) => host.live.state.model") == "layer", "the network is a change as any other"
    slider = host.get_by_label("Add to every entry of the stream")
    slider.press("ArrowRight")
    settled(page)
    assert host.evaluate("(host) => host.live.state.shift") == 0.1
    slider.press("ArrowLeft")
    assert after(model="converted")[1] < 1e-12
    assert host.get_by_label("Leave the subtraction out").is_disabled(), "RMSNorm has none to leave out"
    words, divergence = after(model="layer", removed="h.3.mlp")
    assert divergence > 1e-3 and "credited with" in words and "from the whole network" in words


def test_positions_are_chosen_by_keyboard(open_page):
    page = open_page("type-here", ".network")
    host = standing(page, ".network")
    host.locator('.network-strip button[aria-selected="true"]').focus()
    page.keyboard.press("Home")
    settled(page)
    assert host.locator(".network-strip button").first.get_attribute("aria-selected") == "true"
    assert host.locator(".network-chart").get_attribute("aria-label").startswith("At position 1,")
    host.evaluate("(host) => host.live.change({ site: 'h.1.ln_2' })")
    settled(page)
    chart = host.locator(".network-chart").get_attribute("aria-label")
    assert chart.startswith("At one norm (block 2, before the MLP)")


def test_weights_that_do_not_load_are_told(open_page):
    def without(page):
        page.route("**/twins.js*", lambda route: route.abort())

    page = open_page("type-here", ".network", without)
    page.wait_for_selector(".network .live-warning")
    assert "its weights, twins.js, are missing" in page.locator(".network .live-warning").text_content()
    assert page.locator(".network img").is_visible(), "the still picture stays"


DAMAGES = {
    "longer": lambda text: text.replace('"data": "', '"data": "AAAA', 1),
    "one letter": lambda text: re.sub(r'("data": ".{999})(.)', lambda m: m[1] + "BA"[m[2] == "B"], text, count=1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_told(open_page, html, damage):
    text = DAMAGES[damage]((html / "_static/live/twins.js").read_text("utf-8"))

    def damaged(page):
        page.route("**/twins.js*", lambda route: route.fulfill(body=text))

    page = open_page("type-here", ".network", damaged)
    page.wait_for_selector(".network .live-warning")
    assert "its weights in twins.js are damaged" in page.locator(".network .live-warning").text_content()
    assert page.locator(".network img").is_visible()


def test_a_value_that_is_not_a_number_is_told(open_page):
    page = open_page("type-here", ".network")
    standing(page, ".network")
    host = page.locator(".network").first
    page.evaluate(
        """() => {
          const forward = normgeom.forward;
          normgeom.forward = (...given) => {
            const run = forward(...given);
            run.logits[3] = NaN;
            return run;
          };
        }"""
    )
    host.evaluate("(host) => host.live.change({ text: 'another' })")
    settled(page)
    assert "not a finite number" in host.locator(".live-said").text_content()
    assert host.locator(".network-next").is_hidden(), "probabilities of what is not a number"


def test_nothing_is_computed_out_of_view(browser, html):
    page = browser.new_page(viewport=dict(width=1000, height=600))
    page.goto((html / "chapters/10-without-the-mean.html").as_uri())
    page.wait_for_timeout(300)
    assert page.locator(".network").count() and not page.evaluate("!!document.querySelector('.network').live")
    assert page.evaluate("typeof normgeom.saved") == "undefined", "the weights are loaded before they are needed"
    page.locator(".network").first.scroll_into_view_if_needed()
    standing(page, ".network")
    page.close()


def test_without_scripts_a_still_picture_stands(browser, html):
    for name, mark in (("02-uniform-vector", ".hold"), ("type-here", ".network")):
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto((html / f"chapters/{name}.html").as_uri())
        assert page.locator(f"{mark} img").is_visible() and len(page.locator(f"{mark} img").get_attribute("alt")) > 100
        context.close()
