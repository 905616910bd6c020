"""The library of the toy book."""

from toy import secular
from toy.norms import Box, center

__all__ = ["Box", "center", "draw", "secular"]


def __getattr__(name: str):
    """Brings ``draw`` only when somebody asks for it."""
    if name == "draw":
        from toy.view import draw

        return draw
    raise AttributeError(name)
