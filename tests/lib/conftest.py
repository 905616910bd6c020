"""Settings of the library's tests: fixed seeds, no clock, no files left behind."""

import os
import sys

import pytest
import torch
from hypothesis import settings

# The same examples every time, so that a clone is not red on the day when one is drawn that nobody has seen; a longer
# search, `make search`, draws anew and prints how to repeat what it finds.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=60)
settings.register_profile("search", deadline=None, database=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("DRAWN", "fixed"))

# Files whose tests compare numbers with bounds: what another processor's rounding could turn red.
NUMERICAL = {
    "test_behaviour",
    "test_block_gradients",
    "test_byte_models",
    "test_bytes",
    "test_centring",
    "test_claim_rates",
    "test_coordinates",
    "test_courses",
    "test_decoders",
    "test_designs",
    "test_dropping",
    "test_elementwise",
    "test_ellipsoid",
    "test_ellipsoids",
    "test_exercises",
    "test_families",
    "test_fitting",
    "test_freezing",
    "test_fused_norms",
    "test_gauge",
    "test_gpt2",
    "test_gradients",
    "test_growth",
    "test_head_norm",
    "test_initial",
    "test_jacobian",
    "test_keys",
    "test_lens",
    "test_moments",
    "test_mutants",
    "test_norms",
    "test_norms_kernels",
    "test_norms_modules",
    "test_norms_properties",
    "test_norms_transforms",
    "test_orbits",
    "test_paths",
    "test_placement",
    "test_plane",
    "test_planes",
    "test_precision",
    "test_reading",
    "test_removals",
    "test_scale_free",
    "test_secular",
    "test_silencing",
    "test_slips",
    "test_stages",
    "test_stream",
    "test_sums",
    "test_surgery",
    "test_survey",
    "test_survey_precision",
    "test_survey_runs",
    "test_survey_vectors",
    "test_uniform",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem in NUMERICAL:
            item.add_marker("numerical")


@pytest.fixture(autouse=True)
def _figures_have_no_ground():
    """What a test has drawn in the book's style has no ground of its own."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        grounds = {part.get_facecolor()[3] for figure in figures for part in (figure, *figure.axes)}
        pyplot.close("all")
        assert grounds <= {0}, "a card glares where the page is dark"


@pytest.fixture(autouse=True)
def _fixed_seed():
    """Each test draws the same numbers, whichever tests ran before it."""
    torch.manual_seed(0)
