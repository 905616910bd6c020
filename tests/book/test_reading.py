"""What a reader does with a page: reads it in light and dark, searches it, moves its sliders, turns its figures."""

import pytest

SHOWN = "() => [...document.querySelectorAll('.explore img')].filter(image => !image.hidden).map(image => image.alt)"
CAMERA = "() => JSON.stringify(document.querySelector('.js-plotly-plot')._fullLayout.scene._scene.getCamera().eye)"
# The contrast of WCAG 2 between text and the nearest opaque background, where it is below 4.5.
FAINT = """() => {
    const numbers = color => color.match(/[\\d.]+/g).map(Number);
    const channel = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) =>
        0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
    const background = element => {
        for (let e = element; e; e = e.parentElement) {
            const color = numbers(getComputedStyle(e).backgroundColor);
            if (color.length < 4 || color[3] > 0.5) return color;
        }
        return [255, 255, 255];
    };
    const faint = [];
    const isText = node => node.nodeType === Node.TEXT_NODE;
    const own = e => [...e.childNodes].filter(isText).map(n => n.textContent).join(" ").trim();
    for (const e of document.querySelectorAll('.bd-main *, .bd-sidebar *')) {
        const text = own(e);
        if (!text || !e.offsetParent || e.closest('svg, script, style, .plotly-figure, mjx-container')) continue;
        const both = [luminance(numbers(getComputedStyle(e).color)), luminance(background(e))];
        const [low, high] = both.sort((a, b) => a - b);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < 4.5) faint.push(`${text.slice(0, 30)} (${ratio.toFixed(1)})`);
    }
    return faint;
}"""


def opened(browser, html, name, **options):
    page = browser.new_page(**options)
    page.goto((html / f"chapters/{name}.html").as_uri())
    return page


def pages_with(book, html, mark):
    found = [name for name in book.names if mark in (html / f"chapters/{name}.html").read_text("utf-8")]
    assert found, f"no page has {mark}"
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out(browser, book, html, theme):
    for name in book.names:
        page = opened(browser, html, name)
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        assert not page.evaluate(FAINT), f"{name}, {theme}"
        page.close()


def test_search_finds_a_word_from_disk(browser, html):
    page = browser.new_page()
    page.goto((html / "search.html").as_uri() + "?q=antipode")
    page.wait_for_selector("#search-results li")
    assert "The uniform vector" in page.locator("#search-results").inner_text()
    page.close()


def test_sliders_move_by_keyboard_and_by_mouse(browser, book, html):
    for name in pages_with(book, html, 'class="explore"'):
        page = opened(browser, html, name)
        for slider in page.locator(".explore input").all():
            before = page.evaluate(SHOWN)
            slider.focus()
            page.keyboard.press("ArrowLeft")
            by_keyboard = page.evaluate(SHOWN)
            assert by_keyboard != before, f"{name}: a slider that the keyboard does not move"
            box = slider.bounding_box()
            slider.click(position={"x": box["width"] - 2, "y": box["height"] / 2})
            assert page.evaluate(SHOWN) != by_keyboard, f"{name}: a slider that the mouse does not move"
            assert len(page.evaluate(SHOWN)) == len(before), f"{name}: one frame a figure is to be seen"
        page.close()


def test_figures_turn_under_the_mouse(browser, book, html):
    for name in pages_with(book, html, 'class="plotly-figure"'):
        page = opened(browser, html, name)
        page.wait_for_function("() => document.querySelector('.js-plotly-plot')?._fullLayout?.scene?._scene")
        figure = page.locator(".js-plotly-plot").first
        figure.scroll_into_view_if_needed()
        before, box = page.evaluate(CAMERA), figure.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2 + 120, box["y"] + box["height"] / 2 + 20, steps=8)
        page.mouse.up()
        page.wait_for_timeout(300)
        assert page.evaluate(CAMERA) != before, f"{name}: a figure that does not turn"
        page.close()
