"""Pages as those use them who do not see them, have no mouse, or zoom: opened, alive, and as they are spoken."""

from dataclasses import dataclass
from pathlib import Path

from walk import DESK

# Between them: what is alive, sliders over frames, folds, tables, exercises.
FEW = ("index", "type-here", "01-batch-to-layer")


def opened(browser, path: Path, **context):
    """A page with its formulas set and its live parts alive, standing still."""
    page = browser.new_page(**{"viewport": DESK, "reduced_motion": "reduce", **context})
    page.goto(path.as_uri())
    page.wait_for_function("() => window.MathJax?.startup?.promise?.then(() => true) ?? true")
    for part in page.locator(".hold, .network").all():
        part.scroll_into_view_if_needed()
        page.wait_for_function("(part) => part.live", arg=part.element_handle())
    page.evaluate("scrollTo(0, 0)")
    settled(page)
    return page


def settled(page) -> None:
    """Wait until what was asked for has been drawn: a drawing takes a frame, and what follows it another."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@dataclass(frozen=True)
class Node:
    """What a screen reader has of an element."""

    role: str
    name: str
    described: str
    properties: dict


def spoken(page) -> list[Node]:
    """The accessibility tree of Chromium, in its order."""
    client = page.context.new_cdp_session(page)
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    client.detach()
    return [_node(node) for node in nodes if not node["ignored"]]


def of(page, element) -> Node:
    """What a screen reader has of one element."""
    client = page.context.new_cdp_session(page)
    element.evaluate("(element) => { globalThis.asked = element; }")
    found = client.send("Runtime.evaluate", {"expression": "asked"})["result"]["objectId"]
    (node, *_) = client.send("Accessibility.getPartialAXTree", {"objectId": found, "fetchRelatives": False})["nodes"]
    client.detach()
    return _node(node)


def _node(node: dict) -> Node:
    said = {key: node.get(key, {}).get("value", "") for key in ("role", "name", "description")}
    properties = {entry["name"]: entry["value"].get("value") for entry in node.get("properties", [])}
    return Node(*said.values(), properties)
