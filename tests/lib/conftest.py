"""Settings of the library's tests: fixed seeds, no clock, no files left behind."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _fixed_seed():
    """Each test draws the same numbers, whichever tests ran before it."""
    torch.manual_seed(0)
