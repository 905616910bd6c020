"""The pages in a browser, opened from disk: mathematics is set, figures stand, nothing is asked of the network."""

SEEN = """() => ({
    formulas: document.querySelectorAll('.math').length,
    set: document.querySelectorAll('mjx-container').length,
    errors: document.querySelectorAll('mjx-merror').length,
    figures: document.querySelectorAll('.plotly-figure').length,
    drawn: document.querySelectorAll('.js-plotly-plot').length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""
PHONE = {"width": 390, "height": 844}


def visit(browser, address, **options):
    """What is seen on a page, what it complained about, and what it asked of other machines."""
    page = browser.new_page(**options)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.evaluate("() => window.MathJax?.startup?.promise")
    seen = page.evaluate(SEEN)
    page.close()
    return seen, complaints, [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]


def test_pages_open_from_disk(browser, book, html):
    for name in book.names:
        seen, complaints, requests = visit(browser, (html / f"chapters/{name}.html").as_uri())
        assert not complaints, f"{name}: {complaints}"
        assert not requests, f"{name}: {requests}"
        assert seen["set"] == seen["formulas"], f"{name}: {seen}"
        assert seen["errors"] == 0, f"{name}: {seen}"
        assert seen["drawn"] == seen["figures"], f"{name}: {seen}"


def test_no_page_is_wider_than_a_phone(browser, book, html):
    for name in book.names:
        seen, *_ = visit(browser, (html / f"chapters/{name}.html").as_uri(), viewport=PHONE)
        assert seen["overflow"] <= 0, f"{name} is {seen['overflow']} pixels too wide"


def test_the_front_page_opens_the_book(browser, html):
    page = browser.new_page()
    page.goto((html / "index.html").as_uri())
    page.wait_for_url("**/chapters/index.html")
    page.close()
