"""Chapter 6: gradients, growth and training of stacks with norms in different places, and pictures."""

from normgeom_lab.placement.experiments import *  # noqa: F403
from normgeom_lab.placement.figures import *  # noqa: F403
