"""normgeom: what LayerNorm and RMSNorm do to a vector, to a network, and to what we believe about networks."""

from normgeom import exercises
from normgeom.checks import Interval, check_parameters, verify
from normgeom.geometry import secular
from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.geometry.jacobian import NormJacobian
from normgeom.geometry.uniform import angle, project_out, uniform_vector
from normgeom.measure.records import recorded
from normgeom.measure.survey import Survey
from normgeom.measure.watch import watch
from normgeom.models.ablation import drop_mean_subtraction
from normgeom.models.converted import load_converted
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.surgery import center_writers, fold_norms, to_rms_norm
from normgeom.models.twins import twins
from normgeom.norms import LayerNorm, RMSNorm, layer_norm, layer_norm_steps, rms_norm

__all__ = [
    "Ellipsoid",
    "Interval",
    "LayerNorm",
    "NormJacobian",
    "NormSite",
    "RMSNorm",
    "Survey",
    "angle",
    "center_writers",
    "check_parameters",
    "drop_mean_subtraction",
    "exercises",
    "explore",
    "find_norms",
    "fold_norms",
    "layer_norm",
    "layer_norm_steps",
    "load_converted",
    "project_out",
    "recorded",
    "rms_norm",
    "secular",
    "to_rms_norm",
    "twins",
    "uniform_vector",
    "verify",
    "watch",
]


def __getattr__(name: str):
    """``explore`` brings matplotlib, plotly and ipywidgets with it, which measuring does not need."""
    if name == "explore":
        from normgeom.view import explore

        return explore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
