"""Self-checks for the exercises: give your function and hear which mistake it makes.

A function under test is compared with the right one and, where it differs, with a list of known wrong ones, each under
the name of its mistake.  Every check prints what it found and returns whether the function is right.  It tries the
function in float64, on the GPU where there is one; ``device`` asks for another place.  ``mistakes`` lists what a check
knows.
"""

from __future__ import annotations

from normgeom_lab.exercises import arrows, batches, forward, jacobians, recovery, roots, successors
from normgeom_lab.exercises.judge import Device, Exercise, Function, judge

GRADERS: dict[str, Exercise] = {
    "angle": arrows.ANGLE,
    "batch_norm": batches.BATCH_NORM,
    "bisection": roots.BISECTION,
    "head_norm": successors.HEAD_NORM,
    "layer_norm": forward.LAYER_NORM,
    "layer_norm_jacobian": jacobians.LAYER_NORM_JACOBIAN,
    "layer_norm_vjp": jacobians.LAYER_NORM_VJP,
    "occupancy": arrows.OCCUPANCY,
    "project_out": arrows.PROJECT_OUT,
    "recover": recovery.RECOVER,
    "rms_norm": forward.RMS_NORM,
    "sphere_step": successors.SPHERE_STEP,
}
__all__ = [
    "angle",
    "batch_norm",
    "bisection",
    "head_norm",
    "layer_norm",
    "layer_norm_jacobian",
    "layer_norm_vjp",
    "mistakes",
    "occupancy",
    "project_out",
    "recover",
    "rms_norm",
    "sphere_step",
]


def mistakes(grader: str) -> dict[str, str]:
    """The mistakes that a self-check knows, by name, each with the advice that it prints; ``grader`` as "angle".

    Raises:
        ValueError: there is no self-check of that name.
    """
    if grader not in GRADERS:
        raise ValueError(f"grader: expected one of {', '.join(GRADERS)}, got {grader!r}")
    return {mistake: wrong.advice for mistake, wrong in GRADERS[grader].mistakes.items()}


def layer_norm(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, bias, eps)``: LayerNorm over the last axis of ``x`` ``(..., d)``."""
    return judge(mine, GRADERS["layer_norm"], device)


def rms_norm(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, eps)``: RMSNorm over the last axis of ``x`` ``(..., d)``."""
    return judge(mine, GRADERS["rms_norm"], device)


def batch_norm(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, bias, eps)``: batch norm in training, with statistics of the batch alone.

    ``x`` is ``(N, C)`` or ``(N, C, T)``: examples, features and, if there are three axes, positions.  ``weight`` and
    ``bias`` are ``(C,)``.
    """
    return judge(mine, GRADERS["batch_norm"], device)


def project_out(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, direction)``: ``x`` ``(..., d)`` without its component along ``direction`` ``(d,)``."""
    return judge(mine, GRADERS["project_out"], device)


def angle(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, direction)``: the angle in degrees, ``(...)``, between ``x`` and ``direction`` ``(d,)``."""
    return judge(mine, GRADERS["angle"], device)


def occupancy(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(h, direction)``: the occupancy (eq-occupancy) of ``direction`` ``(d,)`` in ``h`` ``(..., d)``."""
    return judge(mine, GRADERS["occupancy"], device)


def layer_norm_jacobian(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, eps)``: the matrix ``(d, d)`` of ∂yᵢ/∂xⱼ of LayerNorm at one vector ``x`` ``(d,)``."""
    return judge(mine, GRADERS["layer_norm_jacobian"], device)


def layer_norm_vjp(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, weight, grad, eps)``: LayerNorm's gradient to ``x`` ``(..., d)`` from ``grad`` at its output."""
    return judge(mine, GRADERS["layer_norm_vjp"], device)


def head_norm(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, heads, weight, eps)``: RMSNorm of each of ``heads`` parts of ``x`` ``(..., d)``, by one gain."""
    return judge(mine, GRADERS["head_norm"], device)


def sphere_step(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(x, h, a)``: nGPT's step from ``x`` ``(..., d)``, of length √d, towards ``h``; ``a`` is ``(d,)``."""
    return judge(mine, GRADERS["sphere_step"], device)


def recover(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(y, weight, bias, eps)``: x less its mean, ``(..., d)``, from LayerNorm's output ``y`` for ε > 0.

    At most one gain is 0.
    """
    return judge(mine, GRADERS["recover"], device)


def bisection(mine: Function, device: Device = None) -> bool:
    """Judge ``mine(gain)``: the ``(d - 1,)`` eigenvalues of GΠG between neighbouring squares of ``gain`` ``(d,)``.

    They ascend; no two gains have the same size.
    """
    return judge(mine, GRADERS["bisection"], device)
