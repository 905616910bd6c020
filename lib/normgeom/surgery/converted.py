"""A model that :func:`normgeom.to_rms_norm` changed, as a folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    GenerationConfig,
    PreTrainedConfig,
)
from transformers.utils import logging

from normgeom.jobs.folders import place
from normgeom.surgery.surgery import match_converted

# transformers knows neither these types nor this file: it refuses such a folder instead of reading LayerNorms into it,
# and all that its error quotes is the type; the second one is of folders written before it said so
MODEL_TYPES = ("normgeom-rms-norm, to be loaded by normgeom.load_converted", "normgeom-rms-norm")
WEIGHTS, CONFIG, GENERATION = "converted.safetensors", "config.json", "generation_config.json"


def save_converted(
    model: nn.Module, folder: str | os.PathLike, about: dict, tokenizer: Callable[[Path], object] | None = None
) -> None:
    """Write a converted model for :func:`load_converted`, all of it or, on an error, nothing.

    The folder takes the weights in their dtype; a ``config.json`` that holds the configuration of the model and
    ``about``; what is set for generation; and what ``tokenizer`` writes to the folder that it is called with.  Until
    all is written it is called ``<folder>.part``.

    Raises:
        ValueError: the folder exists and is not empty.
        OSError: it cannot be written, or its ``.part`` was left by a run that was killed.
    """
    with _whole(check_free(folder)) as part:
        if tokenizer is not None:
            tokenizer(part)
        save_file(_each_its_own(model.state_dict()), part / WEIGHTS, metadata={"format": "pt"})
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(part)
        # the last file: without it nothing is loaded
        settings = dict(model.config.to_dict(), dtype=str(model.dtype).removeprefix("torch."))
        settings.pop("_name_or_path", None)  # of this machine
        config = dict(model_type=MODEL_TYPES[0], converted=settings, about=about)
        (part / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _each_its_own(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors of which no two share memory, as those of weights that are still tied do."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in state.items():
        apart[name] = tensor.clone() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    return apart


def load_converted(folder: str | os.PathLike) -> nn.Module:
    """The RMSNorm model in a folder that ``normgeom convert`` wrote: a transformers model, in evaluation mode.

    On the CPU, in the dtype it was written in; its logits are those of the model that was written, bit for bit on the
    same machine.  ``transformers.AutoTokenizer`` reads its tokenizer from the same folder.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder holds something else, or not all of it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"folder: expected one that normgeom convert wrote, {folder} is no folder")
    try:
        stated = json.loads((folder / CONFIG).read_text("utf-8"))
        if stated["model_type"] not in MODEL_TYPES:
            raise ValueError(f"its model_type is {stated['model_type']!r}, not {MODEL_TYPES[0]!r}")
        settings = stated["converted"]
        config = CONFIG_MAPPING[settings["model_type"]].from_dict(settings)
        # copied, for a matrix product depends in its last bit on where in memory the file begins
        state = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
        model = match_converted(_as_pretrained(config, state), state.keys())
        model.load_state_dict(state, assign=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"folder: expected what normgeom convert wrote, {folder} is not that ({error})") from error
    if (folder / GENERATION).exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()


def _as_pretrained(config: PreTrainedConfig, state: dict[str, Tensor]) -> nn.Module:
    """The model as ``from_pretrained`` makes it, whose buffers are not in every dtype those of ``from_config``."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it reports the weights that it has no place for, yet
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
                None, config=config, state_dict=dict(state), dtype=config.dtype, ignore_mismatched_sizes=True
            )
    finally:
        logging.set_verbosity(verbosity)


def check_free(folder: str | os.PathLike) -> Path:
    """Where a new folder is to be made, links followed.

    Raises:
        ValueError: something is there that is no empty folder.
        OSError: it cannot be made, or its ``.part`` is in the way.
    """
    folder = place(folder).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"out: expected a new or empty folder, {folder} holds something; name another")
    if place(_part(folder)).exists():
        raise FileExistsError(f"out: {_part(folder)} was left by a run that was killed; remove it")
    return folder


def _part(folder: Path) -> Path:
    return folder.with_name(folder.name + ".part")


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes ``folder`` when the block is left without an error."""
    part = _part(folder)
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise OSError(f"out: {folder} cannot be written ({error})") from error
    try:
        yield part
        if folder.exists():
            folder.rmdir()
        os.replace(part, folder)
    except (OSError, SafetensorError) as error:
        raise OSError(f"out: {folder} cannot be written ({error}); nothing is left of it") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
