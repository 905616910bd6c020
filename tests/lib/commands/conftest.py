"""A model without a tokenizer, texts, and a tokenizer of a few words."""

import pytest
from runs import save_words
from tiny_models import tiny


@pytest.fixture(scope="session")
def given(tmp_path_factory):
    """A folder: a GPT-2 of 64 positions, texts of more bytes than are needed, of 150 and of 2, a tokenizer."""
    folder = tmp_path_factory.mktemp("given")
    tiny("gpt2", vocab_size=256).save_pretrained(folder / "tiny-gpt2")
    long = "".join(f"{i}: γ ⊙ n + β, as it was said\n" for i in range(300))
    for name, text in (("long", long), ("other", long[7:]), ("short", "x" * 150), ("none", "γ")):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    save_words(folder / "words")
    return folder
