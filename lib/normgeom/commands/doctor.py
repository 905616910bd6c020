"""From a model's name to what its norms are and what looks wrong with them, as lines of text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn

from normgeom.commands.loading import load_config, load_model, most_tokens
from normgeom.models.doctor import Finding, Report, doctor
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import first_windows, load_tokenizer

TEXTS, LENGTH = 2, 128  # windows that the model reads, and their tokens
COLUMNS = ("norms", "", "kind", "d", "gain", "ε", "where", "rounded to bfloat16", "decays by", "largest entry")


def examine(name: str) -> Report:
    """:func:`normgeom.doctor` of a model by name; it reads the standard library's documentation if it reads text."""
    config = load_config(name)
    network = load_model(name, head=any("ForCausalLM" in kind for kind in config.architectures or ()))
    return doctor(network, _text(name, network))


def _text(name: str, network: nn.Module) -> Tensor | None:
    """Token ids ``(TEXTS, LENGTH)``, beginning as texts do; None if the model has no tokenizer, or reads no text."""
    config = network.config.get_text_config()
    if network.main_input_name == "input_ids" and not config.is_encoder_decoder:
        with suppress(OSError):
            encoder, length = load_tokenizer(name, network.config), most_tokens(config, LENGTH)
            (ids,) = first_windows(load_corpus("stdlib"), encoder, TEXTS * length, length, TEXTS)
            begin = [[config.bos_token_id]] * TEXTS if isinstance(config.bos_token_id, int) else ids[:, :0]
            return torch.cat([torch.as_tensor(begin), ids], 1)[:, :length]
    return None


def lines(report: Report) -> Iterator[str]:
    """A table of norms and a line for each finding; norms or findings that differ only in their block share a line.

    The last column is the median of the largest entry's share of a vector's squared length; over blocks, the largest.
    """
    alike: dict[tuple, list[float]] = {}
    for norm in report.norms:
        told = (norm.kind, str(norm.dim), norm.gain, f"{norm.eps:g}", norm.place, norm.casts)
        decays = ", ".join(norm.decays) or "no rule"
        alike.setdefault((_pattern(norm.name), *told, decays), []).append(norm.measured["share"])
    rows = [COLUMNS]
    for (name, *told), shares in alike.items():
        rows.append((name, f"× {len(shares)}", *told, f"{max(shares):.0%}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
    found: dict[tuple, list[Finding]] = {}
    for finding in report:
        found.setdefault((_pattern(finding.site), re.sub(r"[\d.e-]+", "*", finding.problem)), []).append(finding)
    for some in found.values():
        worst = max(some, key=lambda finding: finding.size)
        yield f"problem: {worst}" + (f" (the worst of {len(some)} such)" if len(some) > 1 else "")


def _pattern(name: str) -> str:
    return re.sub(r"\b\d+\b", "*", name)
