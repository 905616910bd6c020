"""Pictures: one style, figures that carry their own description, and the book's recurring plots."""

from normgeom.view.explore import explore
from normgeom.view.plots import NULLS, angles_by_layer, errors_by_layer, null_band, nulls_by_layer, occupancy_by_layer
from normgeom.view.style import COLORS, MARKERS, WIDTH, show, style

__all__ = [
    "COLORS",
    "MARKERS",
    "NULLS",
    "WIDTH",
    "angles_by_layer",
    "errors_by_layer",
    "explore",
    "null_band",
    "nulls_by_layer",
    "occupancy_by_layer",
    "show",
    "style",
]
