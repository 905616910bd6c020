"""Chapter 9: credit of parts and heads, the logit lens, and pictures."""

from normgeom_lab.reading.experiments import *  # noqa: F403
from normgeom_lab.reading.figures import *  # noqa: F403
