"""The gains of published models, their ellipsoids, and attention: scores, the bounds on them, and sinks."""

from unittest.mock import patch

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.watch import forward
from normgeom_lab.hyperellipsoid import shapes
from torch import Tensor, nn
from transformers import WhisperForConditionalGeneration

from experiments.models import FOLDER
from experiments.real_models import LANGUAGE, PARTS, about, blocks, language_model
from experiments.registry import experiment

WINDOWS, LENGTH = 4, 128
ON = f"WikiText-2, {WINDOWS} windows of {LENGTH} tokens of each part, each starting with BOS"
GEMMA = LANGUAGE[1]


@experiment(
    "published-gains",
    "The gains of every norm, including norms of queries and keys: quantiles of their absolute values (q05: 5 %).",
    dict(model=LANGUAGE),
    minutes=1,
    corpus="none",
    **about(*LANGUAGE),
)
def gains(model: str) -> list[dict]:
    sizes = {site: site.weight.abs() for site in ng.find_norms(language_model(model)[0])}
    cuts = lambda size: {f"q{q:02d}": float(f"{float(size.quantile(q / 100)):.4g}") for q in (0, 5, 50, 95, 100)}  # noqa: E731
    return [dict(site=site.name, dim=site.dim) | cuts(size) for site, size in sizes.items()]


@experiment(
    "published-shapes",
    "The shape of each ellipsoid of Whisper's LayerNorms; normgeom_lab.hyperellipsoid.shapes explains the columns.",
    {},
    minutes=1,
    **about("whisper-base", reads=FOLDER) | dict(corpus="none", seed="none"),
)
def ellipsoids() -> pd.DataFrame:
    model = WhisperForConditionalGeneration.from_pretrained(FOLDER / "whisper-base").eval()
    example = dict(input_features=torch.zeros(1, 80, 3000), decoder_input_ids=torch.zeros(1, 1, dtype=torch.long))
    sizes = {site.name: site.weight.double() for site in ng.find_norms(model, example)}
    return shapes(sizes).rename_axis("site").reset_index()


@experiment(
    "published-scores",
    "The largest absolute attention score in each head of Gemma 3 on two texts (valid, test). bound: the bound from "
    "the norms of queries and keys, d max|γ_q| max|γ_k| divided by the scores' divisor, where d is the head width.",
    dict(model=(GEMMA,)),
    minutes=1,
    corpus=ON,
    **about(GEMMA),
)
def scores(model: str) -> list[dict]:
    network, tokenizer = language_model(model)
    network.set_attn_implementation("eager")  # which calls torch's softmax
    seen, softmax = [], nn.functional.softmax

    def look(x: Tensor, **how: object) -> Tensor:
        seen.append(x.where(x > torch.finfo(x.dtype).min, 0).abs().amax((0, 2, 3)))  # masked ones are the lowest number
        return softmax(x, **how)

    with patch.object(nn.functional, "softmax", look):
        for part in PARTS:
            ids = blocks(tokenizer, part, WINDOWS, LENGTH)
            forward(network.model, dict(input_ids=ids, use_cache=False))
    largest = dict(zip(PARTS, torch.stack(seen).chunk(len(PARTS)), strict=True))  # for each layer and head
    sites, rows = {site.name: site for site in ng.find_norms(network)}, []
    for i, layer in enumerate(network.model.layers):
        gain = [float(sites[f"model.layers.{i}.self_attn.{name}_norm"].weight.abs().max()) for name in "qk"]
        bound = network.config.head_dim * gain[0] * gain[1] * layer.self_attn.scaling
        for head in range(network.config.num_attention_heads):
            by_text = {part: round(float(largest[part][i, head]), 3) for part in PARTS}
            rows.append(dict(layer=i, head=head, bound=round(bound, 2)) | by_text)
    return rows


@experiment(
    "published-sinks",
    "The attention that later positions pay to position 0 in each block (layer): the mean over positions and heads.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=1,
    corpus=ON,
    **about(*LANGUAGE),
)
def sinks(model: str, text: str) -> list[dict]:
    network, tokenizer = language_model(model)
    network.set_attn_implementation("eager")  # other implementations return no weights
    ids = blocks(tokenizer, text, WINDOWS, LENGTH)
    seen = forward(network.model, dict(input_ids=ids, output_attentions=True, use_cache=False)).attentions
    return [dict(layer=i, mean=float(weights[:, :, 1:, 0].mean((0, 2)).mean())) for i, weights in enumerate(seen)]
