"""What programs that run a model over a text share: their arguments, the model, and the windows of tokens."""

from collections.abc import Callable
from pathlib import Path

import click
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

_ARGUMENTS = (
    click.argument("model"),
    click.argument("name"),
    click.argument("text", type=click.Path(exists=True, path_type=Path)),
    click.option("--corpus", required=True, help="What TEXT is: a sentence for the provenance."),
    click.option("--windows", default=256, help="How many windows of text."),
    click.option("--length", default=64, help="Tokens a window."),
)


def over_a_text(program: Callable) -> Callable:
    """Give a click command the arguments model, name, text, corpus, windows and length."""
    for argument in reversed(_ARGUMENTS):
        program = argument(program)
    return program


def model_and_windows(model: str, text: Path, windows: int, length: int) -> tuple[nn.Module, Tensor, str]:
    """The model in evaluation mode, token ids ``(windows, length)``, and words on them for the provenance."""
    network, tokenizer = AutoModel.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    ids = tokenizer(text.read_text("utf-8"), return_tensors="pt", add_special_tokens=False, verbose=False).input_ids[0]
    words = f"{windows} of {length} tokens, from the start, without special tokens"
    return network, ids[: windows * length].view(windows, length), words
