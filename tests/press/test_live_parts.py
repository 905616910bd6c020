"""What is alive in the pages comes with the book: its scripts, and recorded networks as a script."""

import base64
import json
import shutil
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


def test_scripts_are_loaded_where_something_is_alive(copy, root):
    """A toy page with a host loads the scripts; the others do not."""
    from toybook import make

    shutil.copytree(root / "chapters/_live", copy / "chapters/_live")
    page = copy / "chapters/index.md"
    page.write_text(page.read_text("utf-8") + '\n<div class="hold" data-show="norm"><p>A norm.</p></div>\n', "utf-8")
    done = make(copy, "book")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.name: path.read_text("utf-8") for path in (copy / "_build/html/chapters").glob("*.html")}
    scripts = ["norms", "page", "hold"]
    places = [pages["index.html"].find(f"_static/live/{name}.js") for name in scripts]
    assert -1 not in places and places == sorted(places), "each, in this order"
    assert not [name for name, text in pages.items() if name != "index.html" and "_static/live" in text]
    assert (copy / "_build/html/_static/live/norms.js").read_bytes() == (root / "chapters/_live/norms.js").read_bytes()
