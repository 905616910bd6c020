"""The picture that links to the book show."""

import numpy as np
from PIL import Image
from press.edition.social import SIZE, social


def test_it_has_words_and_a_figure_and_leaves_no_draft(book, html, tmp_path):
    shot = Image.open(social(book, tmp_path / "social.png")).convert("RGB")
    assert shot.size == (SIZE["width"], SIZE["height"])
    pixels = np.asarray(shot, dtype=int)
    dark = pixels.sum(-1) < 500
    assert dark[40:140].sum() > 5000, "the title is missing"
    colors = pixels[250:].max(-1) - pixels[250:].min(-1)
    assert (colors > 80).sum() > 1000, "the figure is missing"
    assert [path.name for path in tmp_path.iterdir()] == ["social.png"]
