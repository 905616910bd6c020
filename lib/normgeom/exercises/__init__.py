"""Self-checks for the exercises: give your function and hear which mistake it makes.

A function under test is compared with the right one and, where it differs, with a list of known wrong ones, each under
the name of its mistake.  Every check prints what it found and returns whether the function is right.  It tries the
function in float64, on the GPU where there is one; ``device`` asks for another place.  ``mistakes`` lists what a check
knows.
"""

from __future__ import annotations

from collections.abc import Callable

from normgeom.exercises import arrows, batches, forward, jacobians, recovery, roots, successors
from normgeom.exercises.judge import Device, Exercise, Function, judge

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
__all__ = sorted([*GRADERS, "mistakes"])


def mistakes(grader: str) -> dict[str, str]:
    """The mistakes that a self-check knows, by name, each with the advice that it prints; ``grader`` as "angle".

    Raises:
        ValueError: there is no self-check of that name.
    """
    if grader not in GRADERS:
        raise ValueError(f"grader: expected one of {', '.join(GRADERS)}, got {grader!r}")
    return {mistake: wrong.advice for mistake, wrong in GRADERS[grader].mistakes.items()}


def _grader(name: str, exercise: Exercise) -> Callable[..., bool]:
    def grader(mine: Function, device: Device = None) -> bool:
        return judge(mine, exercise, device)

    grader.__name__ = grader.__qualname__ = name
    grader.__doc__ = f"Judge {exercise.asks}"
    return grader


globals().update({name: _grader(name, exercise) for name, exercise in GRADERS.items()})
