"""What tests of other packages share: each is skipped with a word where its package is not installed."""

import importlib
import re
import sys

import pytest
import torch


def _name_what_torchvision_lacks():
    """As PyPI has it, it is built for CUDA; beside a torch without, its compiled functions are missing.

    Its models, and what imports it, need no more than their names.
    """
    names = torch.library.Library("torchvision", "FRAGMENT")
    while True:
        try:
            importlib.import_module("torchvision")
        except ModuleNotFoundError:
            return names
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            names.define(f"{missing[1]}() -> ()")
            for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
                del sys.modules[module]
        else:
            return names


_NAMES = _name_what_torchvision_lacks()  # they go with it


@pytest.fixture
def package():
    """Import a package by name, or skip."""

    def load(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            pytest.skip(f"{name} is not installed ({error})")

    return load
