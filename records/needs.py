"""What a rerun asks of a machine: memory and disk from the sizes of its model, time from a measured minute."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub import HfApi
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import GatedRepoError
from normgeom.commands.loading import load_config
from normgeom.survey.directions import nulls
from normgeom.survey.survey import Survey
from normgeom.text.corpora import HUB
from normgeom.training.twins import SIZES, Size, twin
from normgeom_lab.common.loop import train
from normgeom_lab.inference import counted
from normgeom_lab.training import STATE, operations, parameters, vocabulary
from transformers import AutoModel, PreTrainedConfig

NULLS = 100  # directions of each null that a survey in reruns/ takes
BATCH, LENGTH = 32, 128  # of the surveys of chapters 7, 9 and 10
TRIAL = Size(4, 512, 8, 1e-4, 1, batch=8, length=LENGTH)  # what a device's speed is measured on


class Need(NamedTuple):
    """What a rerun asks for: bytes of memory and of disk, and seconds."""

    memory: float
    disk: float
    seconds: float


class Reading(NamedTuple):
    """How a chapter reads a model.

    Attributes:
        weight: bytes of memory a weight; None for those of the saved format.
        entry: bytes a feature, token and norm.
        passes: of the text, for each norm.
        own: seconds that the chapter takes besides.
        device: whether it runs on an accelerator where there is one.
    """

    weight: float | None
    entry: float
    passes: float
    own: float
    device: bool


# Chapter 7 keeps nothing of a token and makes one pass.  Of the others: what runs of GPT-2s of 2 × 64 and of 8 × 512 on
# 2048 tokens, chapter 9 also on 4096, took, rounded up.
READS = {
    "07-inference": Reading(None, 0, 0, 40, True),
    "09-interpretability": Reading(8, 40, 2, 20, False),
    "10-without-the-mean": Reading(24, 40, 7, 20, False),
}
TRAINS = "08-training"


class Absent(Exception):
    """A model or a corpus that cannot be had; says why and what helps."""


class Speed(NamedTuple):
    """Operations a second that a device sustains in a survey and in training."""

    survey: float
    training: float


def measured_speed(device: str, seconds: float) -> Speed:
    """Both speeds of a device, each measured for at least ``seconds`` on a GPT-2 of four blocks and 512 features."""
    config = TRIAL.config(256)
    ids = torch.randint(256, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0)).to(device)
    network = AutoModel.from_config(config).eval().to(device)
    survey = Survey(network, ["uniform", "random_a", "random_b", *nulls(NULLS)], pilot=ids)
    surveyed = _repeated(lambda: survey.run([ids], progress=False), device, seconds)
    model = twin(config, 0, "layer").to(device)
    trained = _repeated(lambda: train(model, [ids[: TRIAL.batch]], 1, TRIAL.lr, None), device, seconds)
    _, working, _ = counted(config)
    return Speed(2 * working * ids.numel() / surveyed, operations(TRIAL) / trained)


def _repeated(work, device: str, seconds: float) -> float:
    """Seconds a call of ``work``, the first left out."""
    work()
    calls, start = 0, time.perf_counter()
    while not calls or time.perf_counter() - start < seconds:
        work()
        calls += 1
        if device == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def place_of(name: str, models: Path | None) -> str:
    """The folder of a model under ``models``, if there is one; else its name."""
    folder = models and models / name
    return str(folder) if folder and folder.is_dir() else name


def need_of(chapter: str, given: dict, speed: Callable[[], Speed]) -> Need:
    """What a rerun with these parameters asks for.

    Args:
        speed: of the device, asked for once all else is known.

    Raises:
        Absent: its model or its corpus cannot be had.
    """
    _find_corpus(given["corpus"])
    if chapter == TRAINS:
        return _of_training(given, speed)
    return _of_model(READS[chapter], given["model"], given["tokens"], speed)


def _of_training(given: dict, speed: Callable[[], Speed]) -> Need:
    size = SIZES[given["size"]]
    size = replace(size, steps=given.get("steps") or size.steps)
    weights = parameters(size)
    # Trainer passes a whole batch at once: of each block what its backward pass needs, and the logits twice.
    activations = 4 * size.batch * size.length * (size.layers * 34 * size.width + 2 * vocabulary(size))
    kept = 2 * 4 * weights + STATE * weights  # both models, and the checkpoint of one
    return Need(STATE * weights + activations, kept, 2 * operations(size) / speed().training)


def _of_model(reads: Reading, name: str, tokens: int, speed: Callable[[], Speed]) -> Need:
    folders = [folder for norm in ("layer", "rms") if (folder := Path(name) / norm / "model").is_dir()]
    place = str(folders[0]) if folders else name
    config = _config(place)
    weights, working, norms = counted(config)
    saved, d = (config.dtype or torch.float32).itemsize, config.hidden_size
    vectors = 2 * norms * 4 * (3 + 3 * NULLS) * d if reads.device else reads.entry * norms * tokens * d
    batch = 12 * 4 * BATCH * LENGTH * d
    to_fetch = 0 if Path(place).is_dir() else max(0, saved * weights - _cached(name))
    work = 2 * working * tokens * (reads.passes * norms or 1) * max(1, len(folders))
    return Need((reads.weight or saved) * weights + vectors + batch, to_fetch, reads.own + work / speed().survey)


def _config(place: str) -> PreTrainedConfig:
    try:
        return load_config(place)
    except (OSError, ValueError) as error:
        if isinstance(getattr(error.__cause__, "__cause__", None), GatedRepoError):
            raise Absent(
                f"behind a licence: accept it at https://huggingface.co/{place} and run `hf auth login`"
            ) from error
        raise Absent(f"{error}".removeprefix("model: ")) from error


def _cached(name: str) -> float:
    """Bytes of a model that the hub's cache holds."""
    blobs = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"
    return sum(path.stat().st_size for path in blobs.glob("*")) if blobs.is_dir() else 0


def _find_corpus(name: str) -> None:
    if name in HUB:
        if amiss := _unreachable(name):
            raise Absent(f"the corpus {name} is out of reach ({amiss}); name a text: CORPUS=FILE")
    elif name != "stdlib" and not Path(name).is_file():
        raise Absent(f"there is no text file {name!r}")


@lru_cache
def _unreachable(name: str) -> str:
    """What the hub raises when it is asked for a corpus; empty where that is there."""
    try:
        path, _, revision = HUB[name]
        HfApi().dataset_info(path, revision=revision, timeout=10)
    except Exception as error:  # the hub's and the network's share no class
        return type(error).__name__
    return ""


def lacking(need: Need, chapter: str, folder: Path) -> Iterator[str]:
    """In words, what of a need this machine does not have."""
    on_device = chapter == TRAINS or READS[chapter].device
    memory = free_memory("cuda" if on_device and torch.cuda.is_available() else "cpu")
    near = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    disk = shutil.disk_usage(near).free
    for what, wanted, there in (("memory", need.memory, memory), ("disk", need.disk, disk)):
        if wanted > there:
            yield f"needs {in_bytes(wanted)} of {what}, there are {in_bytes(there)}"


def free_memory(device: str) -> float:
    """Bytes that are free on a device; of the host those that it has, where it does not say."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
        return 1024 * int(line.split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def in_bytes(number: float) -> str:
    """A number of bytes in words."""
    return f"{number / 1e9:.3g} GB" if number >= 1e8 else f"{number / 1e6:.3g} MB"


def in_time(seconds: float) -> str:
    """A time in words."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.0f} seconds"
