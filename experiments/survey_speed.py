"""What a survey adds to a forward pass, beside other ways to the same vectors; and that its memory does not grow."""

import copy
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import normgeom as ng
import pandas as pd
import torch
from normgeom.survey.directions import unit
from normgeom_lab.precision import in_turns
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from experiments.registry import experiment
from experiments.speed import ON_GPU, malloc, over, peak

DIRECTIONS, SEED, BINS = ("uniform", "random_a", "random_b"), 0, 720
BYTES = dict(n_layer=6, n_embd=384, n_head=6, vocab_size=257, bos_token_id=None, eos_token_id=None)
MODELS = {"GPT-2 small": {}, "6 layers of 384, bytes": BYTES}
NARROW = dict(n_embd=32, n_head=2, vocab_size=509, bos_token_id=None, eos_token_id=None)  # of the one whose tokens grow
# Model, texts and tokens of a batch: rounds of a run, and what a survey may take at most over the bare pass.
SHAPES = {
    ("GPT-2 small", 4, 256): (12, 1.05),
    ("GPT-2 small", 1, 128): (60, 1.05),
    ("6 layers of 384, bytes", 16, 128): (20, 1.15),
    ("6 layers of 384, bytes", 1, 128): (120, 1.30),
}
CELL = ["model", "texts", "length"]


class Angles:
    """The statistics of a survey in plain torch, for vectors that something else hands out; it does less.

    Products are float32, first positions are not kept apart, nothing is said of NaN, of the largest coordinate or of
    what dropping the mean would do.
    """

    def __init__(self, model: nn.Module):
        units = torch.stack([unit(name, model.config.n_embd, SEED) for name in DIRECTIONS])
        self.units, self.seen = units.float().to(model.device), {}
        self.offsets = BINS * torch.arange(len(DIRECTIONS), device=model.device)[:, None]

    def add(self, place: tuple[str, str], x: Tensor) -> None:
        """Vectors ``(..., d)`` at a norm and a side."""
        rows = x.reshape(-1, x.shape[-1]).float()
        norm = torch.linalg.vector_norm(rows, dim=-1)
        cos = nn.functional.linear(rows, self.units).T / norm
        beyond = torch.rad2deg(torch.acos(cos.clamp(-1, 1))) - 90  # small, so that squares lose nothing
        values = torch.stack([beyond, beyond.square(), cos.square(), cos.abs(), norm.expand_as(cos)])
        bins = ((beyond + 90) * (BINS / 180)).long().clamp(0, BINS - 1) + self.offsets
        counts = torch.bincount(bins.flatten(), minlength=self.offsets.numel() * BINS)
        sums, counted = self.seen.get(place, (0, 0))
        self.seen[place] = sums + values.sum(-1, dtype=torch.float64), counted + counts


def bare(model: nn.Module, _: Angles) -> Callable:
    """The forward pass alone."""
    return model


def watched(model: nn.Module, angles: Angles) -> Callable:
    """The hooks on which a survey rests, with the plain statistics of the other ways."""
    sites = ng.find_norms(model)

    def look(site: ng.NormSite, x_in: Tensor, x_out: Tensor) -> None:
        angles.add((site.name, "in"), x_in)
        angles.add((site.name, "out"), x_out)

    def run(ids: Tensor) -> None:
        with ng.watch(model, sites, look):
            model(ids)

    return run


def hidden_states(model: nn.Module, angles: Angles) -> Callable:
    """What transformers returns: the input of each block, which is its first norm's, and the last norm's output."""

    def run(ids: Tensor) -> None:
        for place, x in enumerate(model(ids, output_hidden_states=True).hidden_states):
            angles.add((str(place), "state"), x)

    return run


def lens(model: nn.Module, angles: Angles, keep: bool) -> Callable:
    """TransformerLens: ``run_with_cache`` keeps what it is asked for, ``run_with_hooks`` hands it over as it comes."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)
    sites = [site.name.replace("transformer.h.", "blocks.").replace("ln_", "ln") for site in ng.find_norms(model)]
    sites = [name.replace("transformer.lnf", "ln_final") for name in sites]
    hooks = {f"{name}.hook_{side}": (name, side) for name in sites for side in ("in", "out")}

    def run_with_cache(ids: Tensor) -> None:
        _, cache = bridge.run_with_cache(ids, names_filter=list(hooks))
        for hook, place in hooks.items():
            angles.add(place, cache[hook])

    look = lambda x, hook: angles.add(hooks[hook.name], x)  # noqa: E731
    calls = [(hook, look) for hook in hooks]
    return run_with_cache if keep else lambda ids: bridge.run_with_hooks(ids, fwd_hooks=calls)


def nnsight_trace(model: nn.Module, angles: Angles) -> Callable:
    """nnsight: the statistics stand in the trace, which runs beside the model and needs to save nothing."""
    import nnsight

    traced = nnsight.NNsight(model)
    norms = [(site.name, traced.get(site.name)) for site in ng.find_norms(model)]

    def run(ids: Tensor) -> None:
        with traced.trace(ids):
            for name, norm in norms:
                angles.add((name, "in"), norm.input)
                angles.add((name, "out"), norm.output)

    return run


# Each with the package that it takes beyond the project.
WAYS = {
    "bare forward": (bare, "torch"),
    "Survey": (None, "torch"),
    "watch": (watched, "torch"),
    "output_hidden_states": (hidden_states, "torch"),
    "TransformerLens run_with_cache": (partial(lens, keep=True), "transformer_lens"),
    "TransformerLens run_with_hooks": (partial(lens, keep=False), "transformer_lens"),
    "nnsight trace": (nnsight_trace, "nnsight"),
}


def prepared(way: str, model: nn.Module) -> tuple[Callable, Callable[[], int]]:
    """A way to look at a batch, and how many vectors of each token it sees."""
    if way == "Survey":
        survey = ng.Survey(model, DIRECTIONS, SEED)
        places = ["site", "side"]
        return lambda ids: survey.run([ids], progress=False), lambda: len(survey.table()[places].drop_duplicates())
    angles = Angles(model)
    return WAYS[way][0](model, angles), lambda: len(angles.seen)


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


def grid() -> list[dict]:
    """Three timed runs of each shape, and one of each way that is present, for its memory."""
    found = [name for name, (_, package) in WAYS.items() if find_spec(package)]
    alone = [dict(shape=range(len(SHAPES)), way=found, run=(-1,))]
    return [dict(shape=range(len(SHAPES)), way=("",), run=(0, 1, 2)), *alone]


@experiment(
    "speed-survey",
    "Processor time of one batch, over that of the bare forward pass of the same round, all ways in turns: median of "
    "all runs' rounds, lowest and highest, and the worst of the runs' medians; vectors that a way sees of each token; "
    "how far its peak memory rises above the bare pass's, in megabytes, alone in a process. A goal of 0 is none.",
    lambda rows=None: grid(),
    minutes=45,
    workers=1,
    summary=summed,
    models="GPT-2 with random weights and its head: small; 6 layers, 384 wide, 6 heads, 257 words",
    batches="random tokens, float32",
    runs="3, each of a shape in a process of its own",
    threads=1,
    seed=SEED,
    statistics="Survey takes its own; all other ways share one plain piece of code, which does less",
    tools=lambda _: ", ".join(sorted({package for _, package in WAYS.values() if find_spec(package)})),
)
@torch.no_grad()
def looked_at(shape: int, way: str, run: int) -> list[dict]:
    """One row a way and round, in turns; with a way, how far two batches of it alone raise the peak memory."""
    (name, *size), (rounds, goal) = list(SHAPES.items())[shape]
    model, cell = gpt2(MODELS[name]), dict(zip(CELL, (name, *size), strict=True))
    if way:
        return [cell | dict(rise=rise_of(way, model, tuple(size)))]
    # some tools change the modules that they are given: copies with the same parameters
    twin = lambda: copy.deepcopy(model, {id(p): p for p in model.parameters()})  # noqa: E731
    found = {name: prepared(name, twin()) for name, (_, package) in WAYS.items() if find_spec(package)}
    ways, rows = list(found), []
    for i, ids in enumerate(batches(model, tuple(size), rounds + 1)):
        order = ways[i % len(ways) :] + ways[: i % len(ways)]
        seconds = {name: _seconds(found[name][0], ids) for name in order}
        if i:  # the first round is what first calls load
            rows += [dict(round=i, way=n, seconds=seconds[n], ratio=seconds[n] / seconds["bare forward"]) for n in ways]
    return [cell | row | dict(goal=goal, vectors=found[row["way"]][1]()) for row in rows]


def rise_of(way: str, model: nn.Module, size: tuple[int, int]) -> float:
    """How far two batches raise the peak memory of this process, in megabytes."""
    malloc(M_MMAP_THRESHOLD=2**20)  # large tensors that are freed are given back at once
    run, _ = prepared(way, model)
    for ids in batches(model, (1, 8), 1):
        run(ids)
    before, highest = peak(lambda: [run(ids) for ids in batches(model, size, 2)])
    return highest - before


def _seconds(run: Callable, ids: Tensor) -> float:
    start = time.process_time()
    run(ids)
    return time.process_time() - start


@experiment(
    "size-survey",
    "A survey of every norm, in and out: processor time, the peak memory of the process, in megabytes, program and "
    "model included, and the size of the saved state.",
    dict(tokens=(10**4, 10**5, 10**6)),
    minutes=3,
    workers=1,
    model="GPT-2 with random weights and its head: 12 layers, 32 wide, 2 heads, 509 words",
    batch="20 texts of 250 random tokens, float32",
    seed=SEED,
)
def growth(tokens: int) -> dict[str, float]:
    malloc(M_MMAP_THRESHOLD=2**20)
    model, shape = gpt2(NARROW), (20, 250)
    ng.Survey(model, DIRECTIONS, SEED).run(batches(model, shape, 4), progress=False)  # what first calls load
    measured, number, start = ng.Survey(model, DIRECTIONS, SEED), tokens // 5000, time.process_time()
    _, highest = peak(lambda: measured.run(batches(model, shape, number), progress=False))
    seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        measured.save(Path(folder) / "state.safetensors")
        state = sum(file.stat().st_size for file in Path(folder).iterdir())
    vectors = len(measured.table()[["site", "side"]].drop_duplicates())
    return dict(batches=number, vectors=vectors, seconds=seconds, megabytes=highest, state_bytes=state)


@experiment(
    "speed-survey-cuda",
    "Time of a forward pass with what looks at its vectors, over that of the bare pass of the same round, in which all "
    "ways ran in turns: median, lowest and highest; and the vectors that a way sees of each token.",
    [
        dict(model=("GPT-2 small", "GPT-2 small, bfloat16"), texts=(texts,), length=(length,))
        for texts, length in ((8, 1024), (4, 256), (1, 128))
    ],
    minutes=2,
    workers=1,
    **ON_GPU,
)
@torch.no_grad()
def looked_at_on_gpu(model: str, texts: int, length: int) -> list[dict]:
    network = gpt2({}).to("cuda", torch.bfloat16 if "bfloat16" in model else torch.float32)
    (ids,) = (ids.to("cuda") for ids in batches(network, (texts, length), 1))
    found = {name: prepared(name, network) for name, (_, package) in WAYS.items() if package == "torch"}
    seconds = in_turns({name: partial(run, ids) for name, (run, _) in found.items()}, 20, 0.1)
    return [row | dict(vectors=found[row["way"]][1](), rounds=20) for row in over(seconds, "bare forward")]
