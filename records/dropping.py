"""Doing without the mean: what trained twins lose, and what a converted model saves in time."""

import copy
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import normgeom as ng
import pandas as pd
import torch
from normgeom.models.flow import stream_writers
from normgeom.models.watch import replace_module
from normgeom.records import FOLDER
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, windows
from normgeom.training.twins import load_twin
from normgeom_lab.common.recording import record
from normgeom_lab.precision import in_turns
from normgeom_lab.training import centre
from normgeom_lab.without_mean import by_shift, by_site, compare, without_subtraction
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

HELD_OUT, LENGTH, BATCH = 8192, 128, 16
RUN = "{norm}-0.001-0.1-drawn-{seed}-600/model"  # as records.training names what it trains
SEEDS = (0, 1, 2)
SHIFTS = (0.0, *(sign * c for c in (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 100) for sign in (1, -1)))
FILL = 0.5  # seconds a version in a round, at least one call
SPEED = {  # sizes and batches
    "GPT-2 small": (dict(), ((4, 256), (1, 1))),
    "small": (dict(n_layer=4, n_embd=128, n_head=4, vocab_size=256), ((8, 128), (1, 1))),
}


def read_twin(models: Path, norm: str, seed: int) -> nn.Module:
    """One of the trained twins."""
    folder = models / RUN.format(norm=norm, seed=seed)
    if not (folder / "config.json").is_file():
        raise click.ClickException(f"models: expected {folder}, which python -m records training writes")
    return load_twin(folder)


def held_out() -> list[Tensor]:
    """What the twins were not trained on."""
    return windows(byte_tokens(load_corpus("stdlib").text)[-HELD_OUT:], LENGTH, BATCH)


def ways(layer: nn.Module, rms: nn.Module, batches: list[Tensor]) -> pd.DataFrame:
    """A LayerNorm twin beside itself without the subtraction, in two ways, and beside its RMSNorm twin."""
    changed = {
        "as it is": layer,
        "dropped as it stands": without_subtraction(layer),
        "dropped after centring": ng.to_rms_norm(copy.deepcopy(layer)),
        "trained without": rms,
    }
    return compare(layer, changed, batches).rename_axis("way").reset_index()


def centred(model: nn.Module, first: int | None = None) -> nn.Module:
    """An RMSNorm twin from whose (first) writers the mean is taken all the same; its head is left alone."""
    model = copy.deepcopy(model)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    centre(stream_writers(model)[:first])
    return model


def centring_rms(rms: nn.Module, batches: list[Tensor]) -> pd.DataFrame:
    """What becomes of an RMSNorm twin whose token embedding, or whose every writer, is centred."""
    changed = {"the token embedding": centred(rms, first=1), "all that writes": centred(rms)}
    return compare(rms, changed, batches).rename_axis("centred").reset_index()


@torch.no_grad()
def race(rounds: int) -> Iterator[dict]:
    """One row a model, batch and way: medians over rounds."""
    for name, (sizes, shapes) in SPEED.items():
        torch.manual_seed(0)
        config = GPT2Config(use_cache=False, bos_token_id=None, eos_token_id=None, **sizes)
        versions = converted(GPT2LMHeadModel(config).eval())
        for shape in shapes:
            seconds = in_turns(passes(versions, torch.randint(config.vocab_size, shape)), rounds, FILL)
            yield from over_original(seconds, model=name, batch=shape[0], length=shape[1])


def converted(model: nn.Module) -> dict[str, nn.Module]:
    """A model with LayerNorm, the same converted, and the same with no norms, by what tables call them."""
    bare = copy.deepcopy(model)
    for site in ng.find_norms(bare):
        replace_module(bare, site.module, nn.Identity())
    return {"original": model, "converted": ng.to_rms_norm(copy.deepcopy(model)), "no norms": bare}


def passes(versions: dict[str, nn.Module], ids: Tensor) -> dict[str, Callable[[], object]]:
    """A forward pass of each."""
    return {way: lambda network=network: network(ids) for way, network in versions.items()}


def over_original(seconds: pd.DataFrame, **cell: object) -> Iterator[dict]:
    """One row a way: medians of the rounds, and of the ratios within a round to the original."""
    for way in seconds:
        ratios = seconds[way] / seconds.original
        times = dict(seconds=statistics.median(seconds[way]), ratio=statistics.median(ratios))
        yield dict(**cell, way=way, **times, lowest=ratios.min(), highest=ratios.max())


def measure_losses(models: Path, folder: Path) -> None:
    batches = held_out()
    twins = {seed: tuple(read_twin(models, norm, seed) for norm in ("layer", "rms")) for seed in SEEDS}
    about = dict(
        model="pre-norm GPT-2 twins, 4 blocks, d = 128, byte tokens, 600 updates, as python -m records training makes "
        "them at a rate of 0.001 and a decay of 0.1",
        corpus=f"the last {HELD_OUT} bytes of the standard library's documentation strings (corpus stdlib), which the "
        f"models were not trained on, in windows of {LENGTH}",
        columns="nll: nats a byte; more: above the unchanged model's; kl: of the changed model's predictions from the "
        "unchanged model's; largest: difference of a log-probability",
        seeds=", ".join(map(str, SEEDS)),
    )
    tables = {
        "dropping-ways": (
            lambda layer, rms: ways(layer, rms, batches),
            "The loss of LayerNorm twins whose norms do not subtract the mean: in the weights as they stand, after "
            "the writers were centred (the conversion to RMSNorm), and trained without (the RMSNorm twin).",
        ),
        "dropping-sites": (
            lambda layer, rms: by_site(layer, batches),
            "The loss of LayerNorm twins without the subtraction at one norm, and at all, in the weights as they "
            "stand; drop_error: the mean relative change of the norm's output before the bias.",
        ),
        "dropping-gauge": (
            lambda layer, rms: by_shift(layer, SHIFTS, batches),
            "The loss of LayerNorm twins without any subtraction when the writers have been centred and c was then "
            "added to each entry of the token embedding, which leaves the function as it is (kept: the divergence "
            "with the subtraction); drop_error: mean over the norms.",
        ),
        "dropping-llama": (
            lambda layer, rms: centring_rms(rms, batches),
            "The loss of RMSNorm twins from whose token embedding, or whose every writer, the mean was taken.",
        ),
    }
    for name, (measure, what) in tables.items():
        found = [measure(*twins[seed]).assign(seed=seed) for seed in tqdm(SEEDS, desc=name, unit="seed")]
        table = pd.concat(found, ignore_index=True)
        record(name, table[["seed", *table.columns.drop("seed")]], what, folder, **about)
        click.echo(table.to_string(index=False))


def measure_speed(rounds: int, folder: Path) -> None:
    table = pd.DataFrame(race(rounds))
    record(
        "speed-converted",
        table,
        "Time of a forward pass over that of the same model unconverted, median, lowest and highest of rounds in which "
        "the versions ran in turns: converted to RMSNorm by to_rms_norm, and with no norms at all, the bound on what "
        "any replacement can save.",
        folder,
        model="GPT-2 of random weights with its head, float32; GPT-2 small: 12 layers of 768; small: 4 of 128",
        rounds=rounds,
        norms="torch.nn.LayerNorm in the original, normgeom.RMSNorm in the converted model",
    )
    click.echo(table.round(4).to_string(index=False))


@click.command()
@click.option("--part", type=click.Choice(["losses", "speed"]), help="Only one of the two.  [default: both]")
@click.option("--models", default="_build/training/main", type=click.Path(path_type=Path), help="Twins, trained.")
@click.option("--rounds", default=15, help="How often each version is timed.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
def main(part: str | None, models: Path, rounds: int, folder: Path) -> None:
    """Write dropping-ways, -sites, -gauge and -llama, and speed-converted."""
    torch.set_num_threads(1)
    if part != "speed":
        measure_losses(models, folder)
    if part != "losses":
        measure_speed(rounds, folder)
