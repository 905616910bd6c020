"""Pictures."""

from toy.view.draw import draw

__all__ = ["draw"]
