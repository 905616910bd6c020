"""Pictures and tables: one style, figures that carry their own description, and figures with sliders."""

from normgeom.view.explore import explore
from normgeom.view.style import COLORS, WIDTH, show, style
from normgeom.view.tables import how_recorded, table

__all__ = ["COLORS", "WIDTH", "explore", "how_recorded", "show", "style", "table"]
