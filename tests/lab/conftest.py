"""Settings of the tests of what single chapters use."""

from numerics import figures_without_ground, fixed_seed, mark_numerical

__all__ = ["figures_without_ground", "fixed_seed"]
NUMERICAL = {
    "test_hyperellipsoid",
    "test_dropping",
    "test_exercises",
    "test_families",
    "test_growth",
    "test_inference",
    "test_placement",
    "test_uniform_vector",
    "test_irreversibility",
    "test_precision",
    "test_reading",
    "test_scale",
    "test_jacobians",
    "test_slips",
    "test_stacks",
    "test_stream",
    "test_training",
    "test_training_courses",
}


def pytest_collection_modifyitems(items):
    mark_numerical(items, NUMERICAL)
