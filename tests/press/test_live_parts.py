"""What is alive in the pages comes with the book: its scripts, and recorded networks as a script."""

import base64
import json
from types import SimpleNamespace

import numpy as np
import torch
from press.live import networks
from safetensors.torch import save_file


def saved(text):
    """What the script sets."""
    assert text.startswith("normgeom.saved = ") and text.endswith(";\n")
    return json.loads(text.removeprefix("normgeom.saved = ").removesuffix(";\n"))


def test_a_network_goes_into_a_script_and_comes_back(tmp_path):
    folder = tmp_path / "figures/data"
    folder.mkdir(parents=True)
    tensors = {
        f"{kind}.{name}": torch.randn(shape).half()
        for kind in ("layer", "rms")
        for name, shape in (("wte.weight", (5, 4)), ("wpe.weight", (3, 4)), ("h.0.ln_1.weight", (4,)))
    }
    tensors["rms.wte.weight"][0, 0] = 2**-24  # the smallest number that is not 0
    save_file(tensors, folder / "twins.safetensors")
    (folder / "twins.json").write_text('{"layers": "1", "heads": "2", "eps": "1e-05"}', encoding="utf-8")
    found = saved(networks(SimpleNamespace(root=tmp_path)))
    for kind in ("layer", "rms"):
        sizes = dict(kind=kind, width=4, vocabulary=5, length=3, layers=1, heads=2, eps=1e-5)
        assert found[kind]["sizes"] == sizes
        numbers = np.frombuffer(base64.b64decode(found[kind]["data"]), "<f2")
        for name, shape in found[kind]["tensors"]:
            own, numbers = np.split(numbers, [int(np.prod(shape))])
            assert np.array_equal(own.reshape(shape), tensors[f"{kind}.{name}"].numpy()), f"{kind}.{name}"
        assert not len(numbers)
