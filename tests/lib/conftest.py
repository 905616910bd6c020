"""Settings of the library's tests."""

from numerics import figures_without_ground, fixed_seed, mark_numerical

__all__ = ["figures_without_ground", "fixed_seed"]
NUMERICAL = {
    "test_elementwise",
    "test_ellipsoid",
    "test_ablation",
    "test_attribution",
    "test_held",
    "test_flow",
    "test_head_norm",
    "test_jacobian",
    "test_moments",
    "test_mutants",
    "test_norms",
    "test_kernels",
    "test_secular",
    "test_stages",
    "test_surgery",
    "test_survey",
    "test_survey_precision",
    "test_survey_vectors",
    "test_uniform",
}


def pytest_collection_modifyitems(items):
    mark_numerical(items, NUMERICAL)
