"""The ellipsoids of a published model's LayerNorms."""

import normgeom as ng
import pandas as pd
import torch
from normgeom_lab.hyperellipsoid import shapes
from transformers import WhisperForConditionalGeneration

from experiments.models import FOLDER
from experiments.real_models import about
from experiments.registry import experiment

PATH = FOLDER / "whisper-base"


@experiment(
    "published-shapes",
    "The ellipsoids of Whisper's LayerNorms: the columns of normgeom_lab.hyperellipsoid.shapes.",
    {},
    minutes=1,
    **about(PATH.name) | dict(corpus="none", seed="none", needs=lambda: "" if PATH.exists() else str(PATH)),
)
def ellipsoids() -> pd.DataFrame:
    model = WhisperForConditionalGeneration.from_pretrained(PATH).eval()
    example = dict(input_features=torch.zeros(1, 80, 3000), decoder_input_ids=torch.zeros(1, 1, dtype=torch.long))
    gains = {site.name: site.weight.double() for site in ng.find_norms(model, example)}
    return shapes(gains).rename_axis("site").reset_index()
