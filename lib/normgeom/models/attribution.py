"""What each part of a network contributes to a logit, and how removing the part changes the logit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from normgeom.models.flow import Part, followed, returned
from normgeom.models.held import gain_and_bias, per_unit, projected
from normgeom.models.trace import WRITES, matrix_of
from normgeom.models.watch import check_texts, entries, evaluating, forward, hooked, watch

COLUMNS = ("credit", "direct", "total", "kappa")


def attribute(
    model: nn.Module,
    inputs: Tensor | Mapping,
    answer: int | Sequence[int] | Tensor,
    against: int | Sequence[int] | Tensor | None = None,
    ablate: str = "mean",
    by: str = "part",
    reference: Tensor | Mapping | None = None,
) -> pd.DataFrame:
    r"""The effect of each part of a pre-norm decoder on the logit of ``answer`` at the last position.

    The parts c are the vectors that the model adds to its residual stream: embeddings and the outputs of attentions
    and MLPs (eq-residual-sum).  Each part is replaced, one at a time; :math:`\Delta` is the part minus its replacement.
    Let x be the stream before the final norm, s its scale, and w the gain times the row of the unembedding for
    ``answer`` (minus the row for ``against``).  Each row contains

    - ``credit``: :math:`w^\top\Pi\Delta/s`, with the final scale as in the run (eq-attribution);
    - ``direct``: the amount by which the logit falls if only the final norm reads the replacement (eq-removal);
    - ``total``: the amount by which the logit falls if everything after the part reads the replacement and reacts;
    - ``kappa``: :math:`\langle n,\Delta\rangle/(ds)`, the part's share of the scale (eq-scale-ratio); ``credit`` is
      close to ``direct`` if kappa is small compared with the ratio of ``direct`` to the logit.

    The last row, ``baseline``, contains the logit that remains, at the same scale, when all parts are replaced; with
    ``ablate="zero"``, it comes from the biases of the final norm and of the unembedding.  Its other columns are NaN.
    The credits of all rows add up to the logit, or to the difference of the two logits.

    Args:
        model: a language model whose blocks read the stream through LayerNorms or RMSNorms.  Its attentions and MLPs
            may run in parallel, and its branches may end in norms (Gemma 3).  A bridge of TransformerLens 4 is accepted
            as loaded; for nnsight, pass the module that it wraps, ``traced._module``.  The model is unchanged
            afterwards, but see the limits in :func:`normgeom.to_rms_norm`.  Inside :func:`normgeom.held_scales`,
            ``total`` is measured with the scales of all norms held except that of the final norm.
        inputs: token ids ``(batch, length)``, without padding, or a mapping passed as ``model(**inputs)``.
        answer: a token id, or a list with one for each sequence.  For a word, use the first of
            ``tokenizer(" Paris", add_special_tokens=False).input_ids``.
        against: another id, or one for each sequence, whose logit is subtracted from that of ``answer``.
        ablate: the replacement of a part: ``"zero"``, its ``"mean"`` over the positions and sequences of ``inputs``, or
            ``"resample"``, its value in the next sequence of the batch.  The first position is neither replaced nor
            included in the mean, because in many models its vector is unlike all others (claim-massive).
        by: ``"part"``, or ``"head"`` for one row per attention head instead of one per attention.  The bias of an
            attention's output belongs to no head and is included in ``baseline``.  If a branch ends in a norm, this
            norm keeps its scale from the run for ``credit``, ``direct`` and ``kappa``.  A branch with a convolution
            before its output (``"conv 0"``) has no heads.
        reference: token ids from which replacements are taken instead of from ``inputs``: the ``"mean"`` is over them;
            for ``"resample"``, as many sequences of the same length, such as corrupted prompts, each of which replaces
            one of ``inputs``.

    Returns:
        one row per part, in the order in which the parts run: ``part`` (an embedding's name, ``"attn 0"``, ``"mlp 0"``,
        …, ``"head 0.3"``) and the four numbers, averaged over the sequences.  The model runs once per part in its own
        dtype, and a float64 copy of it runs once on a few tokens; sums are float64.  A progress bar appears after
        five seconds.  For the numbers of one sequence, pass only that sequence, and others as ``reference``; for the
        logit at position t, pass ``inputs[:, : t + 1]``.

    Raises:
        ValueError: ``inputs`` or ``reference`` are padded, or their shapes do not fit; a token id or an answer is
            outside the vocabulary; ``"resample"`` is given only one sequence and no ``reference``; the stream cannot be
            followed (the message says where); the logits are not linear in the normalised stream, for example because
            they are capped; with ``"head"``, the output map of an attention does more than its weight and bias say.
        TypeError: the token ids are not integers.

    Example:
        >>> import torch, normgeom as ng
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=50)).eval()
        >>> ids = torch.randint(50, (3, 6))
        >>> table = ng.attribute(model, ids, answer=7, against=8, ablate="zero")
        >>> list(table.part)
        ['wte', 'wpe', 'attn 0', 'mlp 0', 'baseline']
        >>> logits = model(ids).logits[:, -1].mean(0).tolist()
        >>> bool(abs(table.credit.sum() - (logits[7] - logits[8])) < 1e-6)
        True
    """
    names, values = effects(model, inputs, answer, against, ablate, by, reference)
    return pd.DataFrame({"part": names, **dict(zip(COLUMNS, values.mean(-1).tolist(), strict=True))})


@torch.no_grad()
def effects(model, inputs, answer, against=None, ablate="mean", by="part", reference=None) -> tuple[list[str], Tensor]:
    """The names of the rows of :func:`attribute`, and its columns for each sequence, ``(4, rows, batch)`` float64."""
    for name, value, known in (("ablate", ablate, REPLACED), ("by", by, ("part", "head"))):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}")
    shape = _shape("inputs", model, inputs)
    if reference is None and ablate == "resample" and shape[0] < 2:
        raise ValueError("inputs: expected two sequences or more, from which to resample, got one")
    run = Run(model, inputs, shape)
    other = None if reference is None else Run(model, reference, _shape("reference", model, reference))
    if other and ablate == "resample" and other.shape != run.shape:
        raise ValueError(f"reference: expected the shape of inputs, {tuple(run.shape)}, got {tuple(other.shape)}")
    w, constant, said = run.reader(answer, against)
    final, x = run.stream.final, run.end
    names, changes, ends = [], [], []
    for part in tqdm(run.stream.parts, desc="attribute", unit="part", delay=5, leave=False):
        for name, writer, taken, change in run.pieces(part, REPLACED[ablate], by == "head", other):
            names.append(name)
            changes.append(change)
            ends.append(run.result([run.taking(writer, taken)])[0])
    changes, ends, per_s = torch.stack(changes), torch.stack(ends), per_unit(final, x)

    def reads(x: Tensor, per_s: Tensor) -> Tensor:
        return (w * projected(final, x) * per_s).sum(-1)

    whole = reads(x, per_s)
    if (whole + constant - said).abs().max() > run.near * run.logits.abs().max():
        raise ValueError("model: expected logits that its unembedding computes from the stream, with nothing added")
    direct = whole - reads(x - changes, per_unit(final, x - changes))
    kappa = (projected(final, x) * changes).mean(-1) * per_s.squeeze(-1) ** 2
    rows = torch.stack([reads(changes, per_s), direct, whole - reads(ends, per_unit(final, ends)), kappa])
    baseline = torch.full_like(rows[:, :1], torch.nan)
    baseline[0] = reads(x - changes.sum(0), per_s) + constant
    return [*names, "baseline"], torch.cat([rows, baseline], 1)


def _after_first(replaced: Callable[[Tensor, Tensor | None], Tensor]) -> Callable:
    def instead(y: Tensor, other: Tensor | None = None) -> Tensor:
        return torch.cat([y[:, :1], replaced(y[:, 1:], None if other is None else other[:, 1:])], 1)

    return instead


# the replacements of the output of a part, ``(batch, length, d)``, by itself or by that of another run
REPLACED = {
    "mean": _after_first(lambda y, other: (y if other is None else other).flatten(0, 1).mean(0).expand_as(y)),
    "zero": _after_first(lambda y, other: torch.zeros_like(y)),
    "resample": _after_first(lambda y, other: y.roll(-1, 0) if other is None else other),
}


def _shape(argument: str, model: nn.Module, inputs: Tensor | Mapping) -> torch.Size:
    ids = entries(inputs).get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.shape[1] < 2:
        came = tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"{argument}: expected token ids (batch, length) of length 2 or more, got {came}")
    check_texts(argument, model, inputs)
    return ids.shape


class _Ended(Exception):
    """Ends a run once nothing more is needed from it."""


class Run:
    """A run of a model: the inputs and outputs of modules, and the end of its stream, ``(batch, d)`` float64."""

    def __init__(self, model: nn.Module, inputs: Tensor | Mapping, shape: torch.Size):
        self.model, self.inputs, self.shape = model, inputs, shape
        self.stream = followed(model, inputs)
        self.head = model.get_submodule(self.stream.head)
        self.read: dict[str, Tensor] = {}
        self.written: dict[str, Tensor] = {}

        def keep(name: str, x: Tensor, y: Tensor) -> None:
            if name in self.written:
                raise ValueError(f"model: expected modules that write to the stream once, {name} ran twice")
            self.read[name], self.written[name] = x, y.clone()  # the model may add to it in place

        for name in (part.writer for part in self.stream.parts):
            if isinstance(model.get_submodule(name), nn.MultiheadAttention):
                raise ValueError(f"model: expected attentions that end in a linear map, {name} is torch's own")
        with watch(model, {name for part in self.stream.parts for name in (part.writer, part.map)}, keep):
            self.end, self.logits = self.result()
        if self.logits.dim() != 2 or len(self.logits) != shape[0]:
            raise ValueError("model: expected one that keeps sequences along the first axis throughout")
        written = [self.spread(self.written.get(part.writer, self.end[:0])) for part in self.stream.parts]
        added = sum(p.factor * w[:, -1].double() for p, w in zip(self.stream.parts, written, strict=True))
        self.near = 0.1 if next(iter(self.written.values())).element_size() < 4 else 1e-4
        if (added - self.end).abs().max() > self.near * self.end.abs().max():
            end = self.stream.final.name
            raise ValueError(f"model: its stream cannot be followed to {end}, whose input is not the sum of its parts")

    def result(self, after: Sequence = ()) -> tuple[Tensor, Tensor | None]:
        """The end of the stream, and the last logits; a run with hooks after modules stops before the logits."""
        seen = []
        logits = None

        def keep(module, args, kwargs):
            seen.append(self.spread(next(iter((*args, *kwargs.values()))))[:, -1].double())
            if after:
                raise _Ended

        with evaluating(self.model), suppress(_Ended), hooked([(self.stream.final.module, keep)], after):
            logits = returned(forward(self.model, self.inputs))[0][:, -1].double()
        return seen[0], logits

    def taking(self, writer: str, taken: Tensor) -> tuple[nn.Module, Callable]:
        """A module, and a hook that subtracts ``taken`` from its output."""

        def take(module, args, kwargs, output):
            own = taken.flatten(0, 1)[: output[..., 0].numel()]  # of positions, the same for all sequences
            return (output.double() - own.reshape(output.shape)).to(output.dtype)

        return self.model.get_submodule(writer), take

    def spread(self, y: Tensor) -> Tensor:
        """``(batch, length, d)``, from vectors that are flattened or the same for all sequences."""
        if (count := y[..., 0].numel()) not in (self.shape[1], self.shape.numel()):
            raise ValueError(f"model: expected vectors of all {self.shape.numel()} tokens of inputs, got {count}")
        return y.reshape(-1, self.shape[1], y.shape[-1]).expand(self.shape[0], -1, -1)

    def reader(self, answer: object, against: object) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors that read the logit from n, ``(batch, d)``, the part from biases, ``(batch,)``, and the logit."""
        matrix = matrix_of(self.head, WRITES)
        weight, bias = getattr(self.head, matrix.weight).movedim(matrix.axis, 0), getattr(self.head, matrix.bias)

        def of(name: str, tokens: object) -> tuple[Tensor, Tensor | float, Tensor]:
            ids = _tokens(name, tokens, self.shape[0], len(weight)).to(weight.device)
            logit = self.logits.gather(1, ids[:, None]).squeeze(1)
            return self.stream.read * weight[ids].double(), 0.0 if bias is None else bias[ids].double(), logit

        row, constant, said = of("answer", answer)
        if against is not None:
            other, less, rival = of("against", against)
            row, constant, said = row - other, constant - less, said - rival
        gain, shift = (acting.to(row) for acting in gain_and_bias(self.stream.final))
        return self.stream.factor * gain * row, self.stream.factor * (row @ shift + constant), said

    def pieces(self, part: Part, replaced: Callable, heads: bool, other: Run | None = None) -> Iterator[tuple]:
        """For a part, or each head in it: name, module, and what its replacement subtracts there and at the end."""
        heads = heads and part.mixes
        runs = (self,) if other is None else (self, other)
        y, *reference = (run.spread(run.read[part.map] if heads else run.written[part.writer]) for run in runs)
        taken = y.double() - replaced(y, *reference).double()
        if not heads:
            yield part.name, part.writer, taken, part.factor * taken[:, -1]
            return
        width = taken.shape[-1]
        stated = getattr(getattr(self.model, "config", None), "num_attention_heads", None)
        owner = self.model.get_submodule(part.map.rpartition(".")[0])
        count = getattr(owner, "num_heads", stated)  # blocks may differ, as may encoder and decoder
        if not count or width % count:
            raise ValueError(f'model: for by="head" expected a number of heads that divides {width}, got {count}')
        module = self.model.get_submodule(part.map)
        matrix = matrix_of(module, WRITES)
        weight, bias = getattr(module, matrix.weight).movedim(matrix.axis, 0).double(), getattr(module, matrix.bias)
        read, written = self.read[part.map].double(), self.written[part.map].double()
        expected = read @ weight.T + (0 if bias is None else bias.double())
        if (expected - written).abs().max() > self.near * written.abs().max():
            raise ValueError(f'model: for by="head" expected {part.map} to be its weight and bias, and nothing more')
        for head, (own, columns) in enumerate(zip(*(t.chunk(count, -1) for t in (taken, weight)), strict=True)):
            written = own @ columns.T
            change = part.factor * written[:, -1]
            if part.norm:  # its scale as in the run
                per_s = per_unit(part.norm, self.spread(self.read[part.writer])[:, -1].double())
                change = projected(part.norm, change) * per_s * gain_and_bias(part.norm)[0].to(change)
            yield f"head {part.name.removeprefix('attn ')}.{head}", part.map, written, change


def _tokens(name: str, tokens: object, count: int, vocabulary: int) -> Tensor:
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError):  # words
        ids = torch.tensor(torch.nan)
    known = not ids.is_floating_point() and ids.dtype != torch.bool and bool(((ids >= 0) & (ids < vocabulary)).all())
    if not known or ids.shape not in ((), (count,)):
        wanted = f"a token id from 0 to {vocabulary - 1}, or {count} of them, one for each sequence"
        raise ValueError(f"{name}: expected {wanted}, got {tokens!r}")
    return ids.expand(count)
