"""The folder of a model that :func:`normgeom.to_rms_norm` converted: weights, and a configuration of its own type."""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors.torch import load_file, save
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, GenerationConfig
from transformers.initialization import no_init_weights

from normgeom.models.flow import project_input
from normgeom.models.trace import Projection
from normgeom.models.watch import replace_module
from normgeom.norms.functions import RMSNorm
from normgeom.surgery.surgery import make_bias

# transformers refuses a folder of an unknown type, which its error quotes, instead of loading LayerNorms from it
MODEL_TYPE = "normgeom-rms-norm, to be loaded by normgeom.load_converted"
WEIGHTS, CONFIG, GENERATION = "converted.safetensors", "config.json", "generation_config.json"


def save_converted(model: nn.Module, folder: str | os.PathLike) -> None:
    """Write a model with RMSNorms of this library for :func:`load_converted`.

    The folder gets the weights in their dtype, the settings for generation and, last, a ``config.json`` with the
    configuration of the model, the ε of each RMSNorm and the names of the weights.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # copied, because safetensors refuses tensors that share memory, as tied weights do
    weights = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    settings = dict(model.config.to_dict(), dtype=str(model.dtype).removeprefix("torch."))
    settings.pop("_name_or_path", None)  # a path on this machine
    norms = {name: module.eps for name, module in model.named_modules() if type(module) is RMSNorm}
    projected = [name.removesuffix(".projection") for name, m in model.named_modules() if isinstance(m, Projection)]
    about = dict(model_type=MODEL_TYPE, converted=settings, norms=norms, projected=projected, weights=sorted(weights))
    (folder / CONFIG).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_converted(folder: str | os.PathLike) -> nn.Module:
    """The RMSNorm model in a folder that ``normgeom convert`` wrote, in evaluation mode.

    The model is on the CPU, in the dtype in which it was written.  On the same machine, its logits equal those of the
    written model bit for bit.  ``transformers.AutoTokenizer`` reads its tokenizer from the same folder.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder holds something else, or is incomplete.

    >>> import normgeom as ng
    >>> ng.load_converted("gpt2-rms")
    Traceback (most recent call last):
    FileNotFoundError: folder: expected one that normgeom wrote, but gpt2-rms is not a folder
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"folder: expected one that normgeom wrote, but {folder} is not a folder")
    try:
        stated = json.loads((folder / CONFIG).read_text("utf-8"))
        if stated["model_type"] != MODEL_TYPE:
            raise ValueError(f"its model_type is {stated['model_type']!r}, not {MODEL_TYPE!r}")
        settings = stated["converted"]
        config = CONFIG_MAPPING[settings["model_type"]].from_dict(settings)
        # copied, because the last bit of a matrix product depends on where in memory a tensor begins
        state = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
        with no_init_weights():
            model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
        for name, eps in stated["norms"].items():
            replace_module(model, model.get_submodule(name), RMSNorm(len(state[f"{name}.weight"]), eps=eps))
        for name in stated["projected"]:
            project_input(model.get_submodule(name))
        # a weight that the model lacks is the bias of a reader, which took over a norm's β
        for name in set(stated["weights"]) - model.state_dict().keys():
            make_bias(model.get_submodule(name.rpartition(".")[0]))
        model.load_state_dict(state, assign=True)
        model.tie_weights()
    except Exception as error:  # of JSON, safetensors, transformers or torch, for a folder of another kind
        raise ValueError(f"folder: expected one that normgeom wrote, but {folder} is not ({error})") from error
    if (folder / GENERATION).exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()
