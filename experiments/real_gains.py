"""The gains of published models, the ellipsoids that they make, and attention: scores, their bounds, and sinks."""

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.watch import forward, hooked
from normgeom_lab.hyperellipsoid import shapes
from torch import Tensor
from transformers import WhisperForConditionalGeneration
from transformers.models.gemma3.modeling_gemma3 import apply_rotary_pos_emb

from experiments.models import FOLDER
from experiments.real_models import LANGUAGE, PARTS, about, blocks, language_model
from experiments.registry import experiment

WINDOWS, LENGTH = 4, 128
ON = f"WikiText-2, {WINDOWS} windows of {LENGTH} tokens of each part, begun by BOS"
GEMMA = LANGUAGE[1]


@experiment(
    "published-gains",
    "The gains that act at every norm, those of queries and keys too: quantiles of their sizes.",
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
    "The ellipsoids of Whisper's LayerNorms: the columns of normgeom_lab.hyperellipsoid.shapes.",
    {},
    minutes=1,
    **about("whisper-base") | dict(corpus="none", seed="none"),
)
def ellipsoids() -> pd.DataFrame:
    model = WhisperForConditionalGeneration.from_pretrained(FOLDER / "whisper-base").eval()
    example = dict(input_features=torch.zeros(1, 80, 3000), decoder_input_ids=torch.zeros(1, 1, dtype=torch.long))
    sizes = {site.name: site.weight.double() for site in ng.find_norms(model, example)}
    return shapes(sizes).rename_axis("site").reset_index()


@experiment(
    "published-scores",
    "The largest size of an attention score of Gemma 3, in each head, on two texts; and the bound that its norms of "
    "queries and keys set: d max|γ_q| max|γ_k| over the scores' divisor, d the width of a head.",
    dict(model=(GEMMA,)),
    minutes=1,
    corpus=ON,
    **about(GEMMA),
)
def scores(model: str) -> list[dict]:
    network, tokenizer = language_model(model)
    config, largest, found = network.config, {}, {}
    sites = {site.name: site for site in ng.find_norms(network)}

    def look(number: int, part: str):
        def hook(module, _args, kwargs, _output):
            q, k = (found.pop(f"model.layers.{number}.self_attn.{name}_norm") for name in "qk")
            q, k = apply_rotary_pos_emb(q, k, *kwargs["position_embeddings"])
            products = (q @ k.transpose(-1, -2)) * module.scaling
            seen = torch.ones(products.shape[-2:], dtype=torch.bool).tril()
            largest[number, part] = (products * seen).abs().amax((0, 2, 3))

        return hook

    def keep(name: str, _x: Tensor, y: Tensor) -> None:
        found[name] = y

    names = [name for name in sites if name.endswith(("q_norm", "k_norm"))]
    for part in PARTS:
        after = [(layer.self_attn, look(i, part)) for i, layer in enumerate(network.model.layers)]
        with ng.watch(network, names, keep), hooked(after=after):
            ids = blocks(tokenizer, part, WINDOWS, LENGTH)
            forward(network.model, dict(input_ids=ids, use_cache=False))
    rows = []
    for i, layer in enumerate(network.model.layers):
        gain = [float(sites[f"model.layers.{i}.self_attn.{name}_norm"].weight.abs().max()) for name in "qk"]
        bound = config.head_dim * gain[0] * gain[1] * layer.self_attn.scaling
        for head in range(config.num_attention_heads):
            by_text = {part: round(float(largest[i, part][head]), 3) for part in PARTS}
            rows.append(dict(layer=i, head=head, bound=round(bound, 2)) | by_text)
    return rows


@experiment(
    "published-sinks",
    "The mean attention that later positions pay to position 0, in each block, averaged over heads.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=1,
    corpus=ON,
    **about(*LANGUAGE),
)
def sinks(model: str, text: str) -> list[dict]:
    network, tokenizer = language_model(model)
    usual = network.config._attn_implementation
    network.set_attn_implementation("eager")  # the others return no weights
    ids = blocks(tokenizer, text, WINDOWS, LENGTH)
    seen = forward(network.model, dict(input_ids=ids, output_attentions=True, use_cache=False)).attentions
    network.set_attn_implementation(usual)
    return [dict(layer=i, mean=float(weights[:, :, 1:, 0].mean((0, 2)).mean())) for i, weights in enumerate(seen)]
