"""What doing without the mean costs the trained twins of experiments.twins."""

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
        "dropping-ways": "The loss of LayerNorm twins whose norms do not subtract the mean: with the weights as "
        "trained, after the writers were centred (the conversion to RMSNorm), and trained without (the RMSNorm twin).",
        "dropping-gauge": "The loss of LayerNorm twins without any subtraction when the writers have been centred and "
        "c was then added to each entry of the token embedding, which leaves the function as it is (kept: the "
        "divergence with the subtraction).",
    },
    dict(seed=SEEDS),
    minutes=15,
    model="pre-norm GPT-2 twins, 4 blocks, d = 128, byte tokens, 600 updates, as the experiment training makes them "
    "at a rate of 0.001 and a decay of 0.1",
    corpus=f"the last {HELD_OUT} bytes of the standard library's documentation strings (corpus stdlib), which the "
    "models were not trained on, in windows of 128",
    columns="nll: nats a byte; more: above the unchanged model's; kl: of the changed model's predictions from the "
    "unchanged model's; largest: difference of a log-probability",
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
