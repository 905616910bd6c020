"""Pictures and tables: one style, figures that carry their own description, and the book's recurring plots."""

from normgeom.view.courses import angles_over_steps, losses_over_steps, occupancy_over_steps
from normgeom.view.explore import explore
from normgeom.view.plots import (
    NULLS,
    angles_by_layer,
    errors_by_layer,
    null_band,
    nulls_by_layer,
    occupancy_by_layer,
    turned_by,
)
from normgeom.view.style import COLORS, MARKERS, WIDTH, show, style
from normgeom.view.tables import how_recorded, table

__all__ = [
    "COLORS",
    "MARKERS",
    "NULLS",
    "WIDTH",
    "angles_by_layer",
    "angles_over_steps",
    "errors_by_layer",
    "explore",
    "how_recorded",
    "losses_over_steps",
    "null_band",
    "nulls_by_layer",
    "occupancy_by_layer",
    "occupancy_over_steps",
    "show",
    "style",
    "table",
    "turned_by",
]
