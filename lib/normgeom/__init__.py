"""normgeom: what LayerNorm and RMSNorm do to a vector, to a network, and to what we believe about networks.

A name's module is loaded when the name is first asked for, so that ``import normgeom`` is cheap and a norm can be had
without what surveys, surgery and pictures need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers, which cannot follow __getattr__
    from normgeom import exercises
    from normgeom.checks import Interval, check_parameters, verify
    from normgeom.geometry import secular
    from normgeom.geometry.ellipsoid import Ellipsoid
    from normgeom.geometry.jacobian import NormJacobian
    from normgeom.geometry.uniform import angle, project_out, uniform_vector
    from normgeom.models.sites import NormSite, find_norms
    from normgeom.models.watch import watch
    from normgeom.norms.elementwise import Derf, DyT, derf, dyt
    from normgeom.norms.functions import LayerNorm, RMSNorm, layer_norm, layer_norm_steps, rms_norm
    from normgeom.norms.heads import HeadNorm, head_norm
    from normgeom.records import recorded
    from normgeom.surgery.ablation import drop_mean_subtraction
    from normgeom.surgery.converted import load_converted
    from normgeom.surgery.freezing import freeze_norms
    from normgeom.surgery.surgery import center_writers, fold_norms, to_rms_norm
    from normgeom.survey.survey import Survey
    from normgeom.training.twins import twins
    from normgeom.view.explore import explore

__all__ = [
    "Derf",
    "DyT",
    "Ellipsoid",
    "HeadNorm",
    "Interval",
    "LayerNorm",
    "NormJacobian",
    "NormSite",
    "RMSNorm",
    "Survey",
    "angle",
    "center_writers",
    "check_parameters",
    "derf",
    "drop_mean_subtraction",
    "dyt",
    "exercises",
    "explore",
    "find_norms",
    "fold_norms",
    "freeze_norms",
    "head_norm",
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

_HOMES = {
    "checks": ("Interval", "check_parameters", "verify"),
    "geometry.ellipsoid": ("Ellipsoid",),
    "geometry.jacobian": ("NormJacobian",),
    "geometry.uniform": ("angle", "project_out", "uniform_vector"),
    "models.sites": ("NormSite", "find_norms"),
    "models.watch": ("watch",),
    "norms.elementwise": ("Derf", "DyT", "derf", "dyt"),
    "norms.functions": ("LayerNorm", "RMSNorm", "layer_norm", "layer_norm_steps", "rms_norm"),
    "norms.heads": ("HeadNorm", "head_norm"),
    "records": ("recorded",),
    "surgery.ablation": ("drop_mean_subtraction",),
    "surgery.converted": ("load_converted",),
    "surgery.freezing": ("freeze_norms",),
    "surgery.surgery": ("center_writers", "fold_norms", "to_rms_norm"),
    "survey.survey": ("Survey",),
    "training.twins": ("twins",),
    "view.explore": ("explore",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {"exercises": "exercises", "secular": "geometry.secular"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value = import_module(f"normgeom.{_MODULES[name]}")
    elif name in _HOME:
        value = getattr(import_module(f"normgeom.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
