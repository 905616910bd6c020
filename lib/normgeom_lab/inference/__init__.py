"""Chapter 7: pairs of twins and surveys of them, changes of gauge, and pictures of angles by layer."""

from normgeom_lab.inference.experiments import *  # noqa: F403
from normgeom_lab.inference.figures import *  # noqa: F403
