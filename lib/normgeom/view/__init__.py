"""Pictures: one style, figures that carry their own description, and the book's recurring plots."""

from normgeom.view.explore import explore
from normgeom.view.plots import angles_by_layer, null_band, occupancy_by_layer
from normgeom.view.style import COLORS, MARKERS, WIDTH, show, style

__all__ = [
    "COLORS",
    "MARKERS",
    "WIDTH",
    "angles_by_layer",
    "explore",
    "null_band",
    "occupancy_by_layer",
    "show",
    "style",
]
