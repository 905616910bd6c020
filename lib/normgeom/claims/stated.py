"""The claims of the sources, in the order in which they stand there."""

from __future__ import annotations

from normgeom.claims.during import comparable_losses, little_at_checkpoints, no_growth
from normgeom.claims.inference import little_along_one, much_along_one, ordinary
from normgeom.claims.judging import Claim
from normgeom.claims.shapes import at_surface, axes_stay

_PAPER = "The geometry paper"
_NOTE = "The summary of the dynamics note"
_LITTLE = "In {} models, hidden vectors have on average no component along 1 {} any norm, with a small spread."
_ORDINARY = "In {} models, 1 behaves as arbitrary vectors do."
_TRAINING = "In training with {}, hidden vectors are at 90° to 1, from early checkpoints on and whatever the layer."
_GROWTH = "Training with {} leaves no more along 1 at the last norm than along a random direction."

_LISTED = (
    Claim(
        "before-layer",
        _LITTLE.format("LayerNorm", "before"),
        f"{_PAPER}, abstract, section 3.2, figures 3 and 6",
        "model",
        little_along_one,
        {"kind": "layer", "side": "in"},
        without={"model": "gpt2-xl"},
    ),
    Claim(
        "after-layer",
        _LITTLE.format("LayerNorm", "after"),
        f"{_PAPER}, section 3.2, figures 3 and 6",
        "model",
        little_along_one,
        {"kind": "layer", "side": "out"},
    ),
    Claim(
        "exception",
        "GPT-2 XL is an exception: before its norms there is a component along 1.",
        f"{_PAPER}, section 3.2, figures 6 and 7",
        "model",
        much_along_one,
        {"model": "gpt2-xl", "kind": "layer", "side": "in"},
    ),
    Claim(
        "before-rms",
        _LITTLE.format("RMSNorm", "before"),
        f"{_PAPER}, abstract, section 3.2, figures 3 and 6",
        "model",
        little_along_one,
        {"kind": "rms", "side": "in"},
    ),
    Claim(
        "after-rms",
        _LITTLE.format("RMSNorm", "after"),
        f"{_PAPER}, section 3.2, figures 3 and 6",
        "model",
        little_along_one,
        {"kind": "rms", "side": "out"},
    ),
    Claim(
        "training-layer",
        _TRAINING.format("LayerNorm"),
        f"{_PAPER}, section 3.3, figures 4, 14, 20, 26 and 32",
        "pair",
        little_at_checkpoints,
        {"norm": "layer", "side": "in"},
    ),
    Claim(
        "training-rms",
        _TRAINING.format("RMSNorm"),
        f"{_PAPER}, section 3.3, figures 4, 17, 23, 29 and 35",
        "pair",
        little_at_checkpoints,
        {"norm": "rms", "side": "in"},
    ),
    Claim(
        "growth-layer",
        _GROWTH.format("LayerNorm"),
        f"Ours, suggested by {_PAPER[0].lower()}{_PAPER[1:]}, section 3.3",
        "pair",
        no_growth,
        {"norm": "layer", "side": "in"},
    ),
    Claim(
        "growth-rms",
        _GROWTH.format("RMSNorm"),
        f"Ours, suggested by {_PAPER[0].lower()}{_PAPER[1:]}, section 3.3",
        "pair",
        no_growth,
        {"norm": "rms", "side": "in"},
    ),
    Claim(
        "ordinary-layer",
        _ORDINARY.format("LayerNorm"),
        f"{_PAPER}, section 3.3, figures 4 and 7 to 13",
        "model",
        ordinary,
        {"kind": "layer", "side": "in"},
    ),
    Claim(
        "ordinary-rms",
        _ORDINARY.format("RMSNorm"),
        f"{_PAPER}, section 3.3, figures 4, 10 and 11",
        "model",
        ordinary,
        {"kind": "rms", "side": "in"},
    ),
    Claim(
        "losses",
        "RMSNorm leads to downstream performance comparable to LayerNorm's; judged here by the loss on held-out text.",
        f"{_PAPER}, section 3.3",
        "pair",
        comparable_losses,
    ),
    Claim(
        "surface",
        "Typical outputs of LayerNorm lie near the surface of its ellipsoid.",
        f"{_NOTE}, key results",
        "pair",
        at_surface,
        {"norm": "layer"},
    ),
    Claim(
        "axes",
        "The ellipsoid's principal axes are, by the middle of training, those of its end.",
        f"Ours, suggested by {_NOTE[0].lower()}{_NOTE[1:]}, next checks",
        "pair",
        axes_stay,
        {"norm": "layer"},
    ),
)

CLAIMS: dict[str, Claim] = {claim.label: claim for claim in _LISTED}
