"""Settings of the tests of what single chapters use."""

from numerics import figures_without_ground, fixed_seed, mark_numerical

__all__ = ["figures_without_ground", "fixed_seed"]
NUMERICAL = {
    "test_bytes",
    "test_coordinates",
    "test_decoders",
    "test_dropping",
    "test_ellipsoids",
    "test_exercises",
    "test_families",
    "test_fitting",
    "test_gradients",
    "test_growth",
    "test_inference",
    "test_keys",
    "test_lens",
    "test_placement",
    "test_plane",
    "test_planes",
    "test_precision",
    "test_reading",
    "test_removals",
    "test_scale",
    "test_scale_free",
    "test_silencing",
    "test_slips",
    "test_stacks",
    "test_stream",
    "test_sums",
    "test_training",
    "test_training_courses",
}


def pytest_collection_modifyitems(items):
    mark_numerical(items, NUMERICAL)
