"""One picture."""


def draw(**values):
    """Draw ``values``."""
