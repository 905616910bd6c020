"""Chapter 8: what training does to the component along 1: orbits, courses of twins, costs, and pictures."""

from normgeom_lab.training.courses import *  # noqa: F403
from normgeom_lab.training.experiments import *  # noqa: F403
from normgeom_lab.training.figures import *  # noqa: F403
