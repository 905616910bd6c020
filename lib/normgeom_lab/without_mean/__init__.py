"""Chapter 10: what models lose without the mean subtraction, wrong conversions, and figures."""

from normgeom_lab.without_mean.experiments import *  # noqa: F403
from normgeom_lab.without_mean.figures import *  # noqa: F403
