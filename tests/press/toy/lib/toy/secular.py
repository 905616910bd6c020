"""An exported module."""

__all__ = ["mean"]


def mean(gain, u=None):
    """The mean; :func:`toy.center` takes it away."""


def helper():
    """For other modules."""
