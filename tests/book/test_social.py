"""The picture that links to the book show."""

import os
import subprocess
import sys

import numpy as np
from PIL import Image
from press.edition.social import SIZE


def test_it_has_words_and_a_figure_and_leaves_no_draft(root, html, chromium, tmp_path):
    """By its command: a process that already drives a browser cannot start a second one."""
    command = [sys.executable, "-m", "press", "social", str(tmp_path / "social.png")]
    done = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": "lib"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shot = Image.open(tmp_path / "social.png").convert("RGB")
    assert shot.size == (SIZE["width"], SIZE["height"])
    pixels = np.asarray(shot, dtype=int)
    dark = pixels.sum(-1) < 500
    assert dark[40:140].sum() > 5000, "the title is missing"
    colors = pixels[250:].max(-1) - pixels[250:].min(-1)
    assert (colors > 80).sum() > 1000, "the figure is missing"
    assert [path.name for path in tmp_path.iterdir()] == ["social.png"]
