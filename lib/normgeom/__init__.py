"""normgeom: what LayerNorm and RMSNorm do to a vector, to a network, and to what we believe about networks.

The module of a public name is loaded when the name is first used, so that ``import normgeom`` is cheap and the norms
work without the packages that surveys, surgery and pictures need.
"""

from importlib import import_module
from typing import Any

# The modules of the public names; secular is a module itself.
_HOMES = {
    "checks": ("verify",),
    "geometry.ellipsoid": ("Ellipsoid",),
    "geometry.jacobian": ("NormJacobian",),
    "geometry.secular": ("secular",),
    "geometry.uniform": ("angle", "project_out", "uniform_vector"),
    "models.attribution": ("attribute",),
    "models.doctor": ("doctor",),
    "models.held": ("held_scales",),
    "models.sites": ("find_norms",),
    "models.twins": ("twins",),
    "models.watch": ("NormSite", "watch"),
    "norms.elementwise": ("Derf", "DyT", "derf", "dyt"),
    "norms.functions": ("LayerNorm", "RMSNorm", "layer_norm", "layer_norm_steps", "rms_norm"),
    "norms.heads": ("HeadNorm", "head_norm"),
    "records": ("recorded",),
    "surgery.ablation": ("drop_mean_subtraction", "freeze_norms"),
    "surgery.converted": ("load_converted",),
    "surgery.surgery": ("center_writers", "fold_norms", "to_rms_norm"),
    "survey.survey": ("Survey",),
    "view.explore": ("explore",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"normgeom.{_HOME[name]}")
    except ModuleNotFoundError as error:
        extra = "notebooks" if _HOME[name].startswith("view") else "models"
        said = f"normgeom.{name} needs {error.name}, which is missing: install normgeom[{extra}]"
        raise ModuleNotFoundError(said, name=error.name) from error
    value = globals()[name] = getattr(module, name, module)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
