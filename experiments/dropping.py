"""The cost of dropping the mean subtraction in the trained twins of experiments.twins."""

import copy

import normgeom as ng
import pandas as pd
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, windows
from normgeom_lab.common.typed import KINDS
from normgeom_lab.without_mean import by_shift, compare, without_subtraction

from experiments.registry import experiment
from experiments.twins import HELD_OUT, SEEDS, trained

SHIFTS = (0.0, *(sign * c for c in (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 100) for sign in (1, -1)))


@experiment(
    "dropping",
    {
        "dropping-ways": "Loss of LayerNorm twins without mean subtraction: with weights as trained; after centring "
        "what writes to the stream (conversion to RMSNorm); and of the RMSNorm twins, which were trained without it.",
        "dropping-gauge": "Loss of LayerNorm twins without any mean subtraction. Before it is dropped, what writes to "
        "the stream is centred and c is added to each entry of the token embedding, which does not change what the "
        "model computes. kept: the divergence from the original model if the subtraction is kept.",
    },
    dict(seed=SEEDS),
    minutes=15,
    model="pre-norm GPT-2 twins with 4 blocks, d = 128 and byte tokens, trained for 600 steps as in the experiment "
    "training, with learning rate 0.001 and weight decay 0.1",
    corpus=f"the last {HELD_OUT} bytes of the standard library's documentation strings (corpus stdlib), on which the "
    "models were not trained, in windows of 128 bytes",
    columns="nll: loss in nats per byte; more: its increase over the unchanged model's; kl: divergence of predictions "
    "from the unchanged model's, in nats; largest: largest difference of a log-probability",
    seeds="0, 1, 2",
)
def dropping(seed: int, steps: int | None = None) -> dict[str, pd.DataFrame]:
    layer, rms = (trained("main", norm, 1e-3, seed, steps)[0] for norm in KINDS)
    batches = windows(byte_tokens(load_corpus("stdlib").text)[-HELD_OUT:], 128, 16)
    ways = {
        "as it is": layer,
        "dropped, weights as trained": without_subtraction(layer),
        "dropped after centring": ng.to_rms_norm(copy.deepcopy(layer)),
        "trained without": rms,
    }
    return {
        "dropping-ways": compare(layer, ways, batches).rename_axis("way").reset_index(),
        "dropping-gauge": by_shift(layer, SHIFTS, batches),
    }
