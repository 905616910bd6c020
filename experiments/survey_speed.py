"""What a survey adds to a forward pass, next to keeping the vectors."""

import time
from collections.abc import Callable, Iterable

import normgeom as ng
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from experiments.registry import experiment
from experiments.speed import malloc, peak

DIRECTIONS, SEED = ("uniform", "random_a", "random_b"), 0
BYTES = dict(n_layer=6, n_embd=384, n_head=6, vocab_size=257, bos_token_id=None, eos_token_id=None)
MODELS = {"GPT-2 small": {}, "6 layers of 384, bytes": BYTES}
WAYS = ("bare forward", "Survey", "watch", "output_hidden_states")
# Model, texts and tokens of a batch: ways, rounds of a run, and what a survey may take at most over the bare pass.
SHAPES = {
    ("GPT-2 small", 4, 256): (WAYS, 5, 1.05),
    ("GPT-2 small", 1, 128): (WAYS[:2], 20, 1.05),
    ("6 layers of 384, bytes", 16, 128): (WAYS[:2], 10, 1.15),
    ("6 layers of 384, bytes", 1, 128): (WAYS[:2], 60, 1.30),
}
CELL = ["model", "texts", "length"]


def prepared(way: str, model: nn.Module) -> tuple[Callable, Callable[[], int]]:
    """A way to look at a batch, and how many vectors of each token it has seen; all but the survey keep them."""
    sites, kept = ng.find_norms(model), []
    survey = ng.Survey(model, DIRECTIONS, SEED)

    def watch(ids: Tensor) -> None:
        kept.clear()
        with ng.watch(model, sites, lambda _, x_in, x_out: kept.extend((x_in, x_out))):
            model(ids)

    def hidden_states(ids: Tensor) -> None:
        kept[:] = model(ids, output_hidden_states=True).hidden_states

    if way == "Survey":
        places = ["site", "side"]
        return lambda ids: survey.run([ids], progress=False), lambda: len(survey.table()[places].drop_duplicates())
    return {"bare forward": model, "watch": watch}.get(way, hidden_states), lambda: len(kept)


def gpt2(sizes: dict[str, int]) -> GPT2LMHeadModel:
    """A GPT-2 of small's shape, but for ``sizes``, with random weights, in evaluation mode."""
    torch.manual_seed(SEED)
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes)).eval()


def batches(model: nn.Module, shape: tuple[int, int], number: int) -> Iterable[Tensor]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(SEED)
    return (torch.randint(model.config.vocab_size, shape, generator=generator) for _ in range(number))


def summed(seen: pd.DataFrame) -> pd.DataFrame:
    """One row a way: medians over the rounds of all runs; lowest and highest round; worst: the largest of the runs'."""
    cell, timed = [*CELL, "way"], seen[seen.run >= 0]
    by_run = timed.groupby([*cell, "run"], sort=False).ratio.median()
    cells = timed.assign(lowest=timed.ratio, highest=timed.ratio).groupby(cell, sort=False)
    kinds = dict(seconds="median", ratio="median", lowest="min", highest="max")
    table = cells.agg(dict(vectors="first", round="size", **kinds, goal="first")).rename(columns={"round": "rounds"})
    table.insert(table.columns.get_loc("goal"), "worst", by_run.groupby(level=cell, sort=False).max())
    rise = seen[seen.run < 0].set_index(cell).rise
    table["megabytes"] = rise - rise.groupby(level=CELL, sort=False).transform("first")
    table = table.reset_index()
    return table.assign(goal=table.goal.where(table.way == "Survey", 0.0))


@experiment(
    "speed-survey",
    "Processor time of one batch, over that of the bare forward pass of the same round, all ways in turns: median of "
    "all runs' rounds, lowest and highest, and the worst of the runs' medians; vectors that a way sees of each token; "
    "how far its peak memory rises above the bare pass's, in megabytes. A goal of 0 is none.",
    dict(run=(-1, 0, 1, 2)),
    minutes=9,
    workers=1,
    summary=summed,
    models="GPT-2 with random weights and its head: small; 6 layers, 384 wide, 6 heads, 257 words",
    batches="random tokens, float32",
    runs="3, each in a process of its own, and one for the memory",
    threads=1,
    seed=SEED,
    statistics="Survey takes its own; the other ways keep the vectors and take none",
)
@torch.no_grad()
def looked_at(run: int) -> list[dict]:
    """One row a shape, way and round, in turns; of run -1 one a shape and way, with the rise of the peak memory."""
    rows = []
    for (name, *size), (ways, rounds, goal) in SHAPES.items():
        model, cell = gpt2(MODELS[name]), dict(zip(CELL, (name, *size), strict=True))
        if run < 0:
            rows += [cell | dict(way=way, rise=rise_of(way, model, tuple(size))) for way in ways]
            continue
        found = {way: prepared(way, model) for way in ways}
        for i, ids in enumerate(batches(model, tuple(size), rounds + 1)):
            turn = i % len(ways)
            seconds = {way: _seconds(found[way][0], ids) for way in ways[turn:] + ways[:turn]}
            for way in ways if i else ():  # the first round is what first calls load
                taken, vectors = seconds[way], found[way][1]()
                ratio = taken / seconds["bare forward"]
                rows.append(cell | dict(way=way, round=i, seconds=taken, ratio=ratio, goal=goal, vectors=vectors))
    return rows


def rise_of(way: str, model: nn.Module, size: tuple[int, int]) -> float:
    """How far two batches raise the peak memory of this process, in megabytes."""
    malloc(M_MMAP_THRESHOLD=2**20)  # large tensors that are freed are given back at once
    run, _ = prepared(way, model)
    for ids in batches(model, (1, 8), 1):
        run(ids)

    def look() -> None:
        for ids in batches(model, size, 2):
            run(ids)  # whose logits nobody keeps

    before, highest = peak(look)
    return highest - before


def _seconds(run: Callable, ids: Tensor) -> float:
    start = time.process_time()
    run(ids)
    return time.process_time() - start
