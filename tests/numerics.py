"""Settings that the tests of the library and of the chapters' package share: fixed seeds, and no figure left open."""

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The tests of lab share the small models of lib.
sys.path.append(str(Path(__file__).with_name("lib")))

# The same examples every time, so that a clone is not red on the day when one is drawn that nobody has seen; a longer
# search, `DRAWN=search pytest …`, draws anew and prints how to repeat what it finds.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=60)
settings.register_profile("search", deadline=None, database=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("DRAWN", "fixed"))


def mark_numerical(items, files):
    """Mark the tests of these files: their bounds could fail under another rounding."""
    for item in items:
        if item.path.stem in files:
            item.add_marker("numerical")


@pytest.fixture(autouse=True)
def figures_without_ground():
    """What a test has drawn in the book's style has no ground of its own."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        grounds = {part.get_facecolor()[3] for figure in figures for part in (figure, *figure.axes)}
        pyplot.close("all")
        assert grounds <= {0}, "a card glares where the page is dark"


@pytest.fixture(autouse=True)
def fixed_seed():
    """Each test draws the same numbers, whichever tests ran before it."""
    torch.manual_seed(0)
