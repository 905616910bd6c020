"""Chapter 11: clocks, rounding errors, memory traffic, recorded times of norms, and figures with their alt texts."""

from normgeom_lab.precision.experiments import *  # noqa: F403
from normgeom_lab.precision.figures import *  # noqa: F403
