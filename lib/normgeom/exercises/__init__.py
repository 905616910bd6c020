"""Self-checks for the exercises: give your function and hear which mistake it makes.

A function under test is compared with the right one and, where it differs, with a list of known wrong ones, each under
the name of its mistake.  Every check prints one sentence and returns whether the function is right.  It tries the
function in float64, on the GPU where there is one; ``device`` asks for another place.
"""

from __future__ import annotations

from normgeom.exercises import arrows, forward, jacobians, successors
from normgeom.exercises.judge import Device, Function, judge

__all__ = [
    "angle",
    "batch_norm",
    "head_norm",
    "layer_norm",
    "layer_norm_jacobian",
    "layer_norm_vjp",
    "project_out",
    "rms_norm",
    "sphere_step",
]


def layer_norm(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, bias, eps)``: LayerNorm over the last axis of ``x`` ``(..., d)``."""
    return judge(mine, forward.LAYER_NORM, device)


def rms_norm(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, eps)``: RMSNorm over the last axis of ``x`` ``(..., d)``."""
    return judge(mine, forward.RMS_NORM, device)


def batch_norm(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, bias, eps)``: batch norm in training, with statistics of the batch alone.

    ``x`` is ``(N, C)`` or ``(N, C, T)``: examples, features and, if there are three axes, positions.  ``weight`` and
    ``bias`` are ``(C,)``.
    """
    return judge(mine, forward.BATCH_NORM, device)


def project_out(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, direction)``: ``x`` ``(..., d)`` without its component along ``direction`` ``(d,)``."""
    return judge(mine, arrows.PROJECT_OUT, device)


def angle(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, direction)``: the angle in degrees, ``(...)``, between ``x`` and ``direction`` ``(d,)``."""
    return judge(mine, arrows.ANGLE, device)


def layer_norm_jacobian(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, eps)``: the matrix ``(d, d)`` of ∂yᵢ/∂xⱼ of LayerNorm at one vector ``x`` ``(d,)``."""
    return judge(mine, jacobians.LAYER_NORM_JACOBIAN, device)


def layer_norm_vjp(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, grad, eps)``: LayerNorm's gradient to ``x`` ``(..., d)`` from ``grad`` at its output."""
    return judge(mine, jacobians.LAYER_NORM_VJP, device)


def head_norm(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, heads, weight, eps)``: RMSNorm of each of ``heads`` parts of ``x`` ``(..., d)``, by one gain."""
    return judge(mine, successors.HEAD_NORM, device)


def sphere_step(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, h, a)``: nGPT's step from ``x`` ``(..., d)``, of length √d, towards ``h``; ``a`` is ``(d,)``."""
    return judge(mine, successors.SPHERE_STEP, device)
