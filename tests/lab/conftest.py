"""Settings of the tests of what single chapters use."""

from numerics import figures_without_ground, fixed_seed, mark_numerical

__all__ = ["figures_without_ground", "fixed_seed"]
NUMERICAL = {
    "test_bytes",
    "test_centring",
    "test_claim_rates",
    "test_coordinates",
    "test_courses",
    "test_decoders",
    "test_dropping",
    "test_ellipsoids",
    "test_exercises",
    "test_families",
    "test_fitting",
    "test_gauge",
    "test_gradients",
    "test_growth",
    "test_keys",
    "test_lens",
    "test_orbits",
    "test_placement",
    "test_plane",
    "test_planes",
    "test_precision",
    "test_reading",
    "test_removals",
    "test_scale_free",
    "test_silencing",
    "test_slips",
    "test_stream",
    "test_stacks",
    "test_sums",
    "test_survey_runs",
}


def pytest_collection_modifyitems(items):
    mark_numerical(items, NUMERICAL)
