"""What each part of a network contributes to a logit, and what the logit is without the part."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from normgeom.models.held import acting, per_unit, projected
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.trace import WRITES, Read, Trace, matrix_of
from normgeom.models.watch import entries, evaluating, forward, hooked

COLUMNS = ("credit", "direct", "total", "kappa")


def attribute(
    model: nn.Module,
    inputs: Tensor | Mapping,
    answer: int | Sequence[int] | Tensor,
    against: int | Sequence[int] | Tensor | None = None,
    ablate: str = "mean",
    by: str = "part",
) -> pd.DataFrame:
    r"""What each part of a pre-norm decoder does to the logit of ``answer`` at the last position.

    The parts c are what the model adds to its residual stream: embeddings, attentions and MLPs
    (eq-residual-sum).  Each is replaced by something, and :math:`\Delta` is the part minus its replacement.  With x the
    stream before the final norm, s its scale and w the gain times the row of the unembedding that belongs to ``answer``
    (minus that of ``against``), a row has

    - ``credit``: :math:`w^\top\Pi\Delta/s`, the final scale as in the run (eq-attribution);
    - ``direct``: by how much the logit falls if only the final norm sees the replacement (eq-removal);
    - ``total``: by how much it falls if the part is replaced at all positions and all that follows runs again;
    - ``kappa``: :math:`\langle n,\Delta\rangle/(ds)`, the part's share of the scale (eq-scale-ratio); ``credit`` is
      about ``direct`` where kappa is small compared with the ratio of ``direct`` to the logit.

    The last row, ``baseline``, is the logit that remains, at the same scale, when all parts are replaced: with
    ``ablate="zero"`` that of the biases of the final norm and of the unembedding.  So the credits add up to the logit,
    or to the difference of the two.  It has no other effect: there the columns are NaN.

    Args:
        model: a language model whose blocks read the stream through LayerNorms or RMSNorms, also in parallel, or whose
            branches end in norms (Gemma 3); unchanged afterwards.  Inside :func:`normgeom.held_scales` ``total`` is
            measured with the scales of the inner norms held, the final one's live.
        inputs: token ids ``(batch, length)``, without padding, or a mapping passed as ``model(**inputs)``.
        answer: a token id, or one for each sequence.
        against: another id, or one for each sequence: the logit of ``answer`` minus that of ``against`` is divided.
        ablate: what replaces a part: ``"zero"``, its ``"mean"`` over all positions and sequences of ``inputs``, or
            ``"resample"``, what it is in the next sequence of the batch.
        by: ``"part"``, or ``"head"`` for each attention head in place of the attentions.  The bias of an attention's
            output belongs to no head and is in ``baseline``.  A norm at the end of the branch has its scale as in the
            run for ``credit``, ``direct`` and ``kappa``.

    Returns:
        a row for each part, in the order in which they run: ``part`` (an embedding's name, ``"attn 0"``, ``"mlp 0"``,
        …, ``"head 0.3"``), and the means over the sequences of the four numbers.  The model runs in its own dtype, as
        often as there are parts; sums are float64.

    Raises:
        ValueError: padding; an answer outside the vocabulary; one sequence with ``"resample"``; a stream that cannot be
            followed, with the place; logits that are not linear in the normalised stream, such as capped ones.

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
    names, values = effects(model, inputs, answer, against, ablate, by)
    return pd.DataFrame({"part": names, **dict(zip(COLUMNS, values.mean(-1).tolist(), strict=True))})


@torch.no_grad()
def effects(model, inputs, answer, against=None, ablate="mean", by="part") -> tuple[list[str], Tensor]:
    """The names and the four columns of :func:`attribute` for each sequence, ``(4, rows, batch)`` float64."""
    for name, value, known in (("ablate", ablate, REPLACED), ("by", by, ("part", "head"))):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}")
    ids = _checked(inputs, ablate)
    parts, final, head = _followed(model, inputs)
    run = _Run(model, inputs, ids, parts, final, head)
    w, constant = _read(run, answer, against)
    replaced, pieces = REPLACED[ablate], []
    for part in parts:
        pieces += _heads(run, part, replaced) if by == "head" and part.mixes else [_piece(run, part, replaced)]
    change = torch.stack([piece.change for piece in pieces])
    scale, whole = 1 / per_unit(final, run.end), _reads(final, w, run.end)
    credit = (w * projected(final, change)).sum(-1) / scale.squeeze(-1)
    direct = whole - _reads(final, w, run.end - change)
    kappa = (projected(final, run.end) * change).mean(-1) / scale.squeeze(-1) ** 2
    total = torch.stack([whole - _reads(final, w, run.ends(*piece.hooks)) for piece in pieces])
    left = run.end - change.sum(0)
    baseline = (w * projected(final, left)).sum(-1) / scale.squeeze(-1) + constant
    nothing = torch.full_like(baseline, torch.nan)
    rows = zip((credit, direct, total, kappa), (baseline, nothing, nothing, nothing), strict=True)
    return [piece.name for piece in pieces] + ["baseline"], torch.stack([torch.cat([a, b[None]]) for a, b in rows])


REPLACED: dict[str, Callable[[Tensor], Tensor]] = {  # of what a part is, (batch, length, d)
    "mean": lambda y: y.flatten(0, -2).mean(0).expand_as(y),
    "zero": torch.zeros_like,
    "resample": lambda y: y.roll(-1, 0),
}


class _Part(NamedTuple):
    """What one module adds to the stream, ``factor`` times: a map or embedding, or the ``norm`` behind ``map``."""

    name: str
    writer: str
    factor: float
    map: str
    norm: NormSite | None
    mixes: bool


class _Piece(NamedTuple):
    """A part or a head: its change of the last vector of the stream, and the hooks that replace it in a run."""

    name: str
    change: Tensor
    hooks: tuple[list, list]


def _checked(inputs: Tensor | Mapping, ablate: str) -> Tensor:
    given = entries(inputs)
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.shape[1] < 2:
        raise ValueError(
            f"inputs: expected token ids (batch, length), length 2 or more, got {getattr(ids, 'shape', ids)}"
        )
    if mask is not None and not bool(torch.as_tensor(mask).bool().all()):
        raise ValueError(
            "inputs: expected sequences of one length without padding, an attention_mask leaves tokens out"
        )
    if ablate == "resample" and len(ids) < 2:
        raise ValueError('inputs: ablate="resample" needs two sequences or more, got one')
    return ids


@torch.enable_grad()
def _followed(model: nn.Module, inputs: Tensor | Mapping) -> tuple[list[_Part], NormSite, nn.Module]:
    """The parts of a model's stream, its final norm and its head, from a run on the first tokens of ``inputs``."""
    sites = find_norms(model, inputs)
    few = {name: v[:2, :11] if isinstance(v, Tensor) and v.dim() == 2 else v for name, v in entries(inputs).items()}
    # its parameters are other objects with the same numbers; half precision becomes float32
    memo = {id(p): nn.Parameter(p.detach(), requires_grad=p.is_floating_point()) for p in model.parameters()}
    copied = copy.deepcopy(model, memo).eval()
    if next((p for p in model.parameters() if p.dtype in (torch.float16, torch.bfloat16)), None) is not None:
        copied.float()

    def call() -> list[Tensor]:
        output = copied(**few) if isinstance(inputs, Mapping) else copied(*few.values())
        return [_logits(output)]

    trace = Trace(copied, sites, call)
    order = [name for name, _ in trace.given]
    reads = {name: trace.read(name, given) for name, given in trace.given if name in trace.norms}
    if not reads:
        raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm")
    final = max(reads, key=order.index)
    if _lost(reads[final]):
        lost = next(
            read for read in reads.values() if trace.norms[read.name].dim == trace.norms[final].dim and _lost(read)
        )
        raise ValueError(f"model: its stream cannot be followed at {lost.name}, {_lost(lost)}")
    after = [trace.read(name, given) for name, given in trace.given[order.index(final) + 1 : -1]]
    heads = [read.name for read in after if read.sources.keys() == {final}]
    if len(heads) != 1 or len(after) != 1:
        raise ValueError(f"model: expected one linear map after its last norm, {final}, got {len(after)}")
    found = [_part(trace, reads, source, share) for source, share in reads[final].sources.items()]
    twice = {name for name, count in Counter(part.name for part in found).items() if count > 1}
    found = [part._replace(name=part.writer) if part.name in twice else part for part in found]
    return found, trace.norms[final], model.get_submodule(heads[0])


def _lost(read: Read) -> str | None:
    """Why what a norm reads is not the sum of what modules wrote."""
    odd = next((source for source, share in read.sources.items() if share is None), None)
    if odd is not None:
        return f"which reads {odd} otherwise than as a summand"
    return None if read.whole else "which reads a sum with a part that comes from no map, embedding or norm"


def _part(trace: Trace, reads: dict[str, Read], writer: str, factor: float) -> _Part:
    source, norm = writer, trace.norms.get(writer)
    if norm is not None:
        if len(reads[writer].sources) != 1:
            raise ValueError(f"model: expected a pre-norm model, and {writer} normalises the stream itself")
        (source,) = reads[writer].sources
    if source in trace.parameters:
        raise ValueError(f"model: its stream cannot be followed at {source}, a parameter that is added to it")
    if isinstance(trace.modules[source], nn.Embedding):
        return _Part(source.rpartition(".")[2], writer, factor, source, norm, False)
    mixes, layer = trace.mixes(source), re.search(r"\.(\d+)\.", source)
    name = f"{'attn' if mixes else 'mlp'} {layer[1]}" if layer else writer
    return _Part(name, writer, factor, source, norm, mixes)


class _Run:
    """One run: what parts wrote, what their maps and norms read, and the end of the stream at the last position."""

    def __init__(self, model: nn.Module, inputs, ids: Tensor, parts: list[_Part], final: NormSite, head: nn.Module):
        self.model, self.inputs, self.ids, self.final, self.head = model, inputs, ids, final, head
        self.modules = dict(model.named_modules())
        self.read, self.written = {}, {}
        self.factor = 1.0
        before = [(self.modules[name], self._keep_read) for part in parts for name in (part.writer, part.map)]
        after = [(self.modules[part.writer], self._keep_written) for part in parts]
        ramp = []

        def replace(module, args, kwargs, output):
            ramp.append(torch.linspace(-100, 100, output.shape[-1]).to(output).expand_as(output))
            return ramp[0]

        self.end, logits = self._run(before, [*after, (head, replace)])
        ramp, logits = (t.double().flatten(0, -2)[-1] for t in (ramp[0], logits))
        self.factor = float(logits @ ramp / (ramp @ ramp)) if logits.shape == ramp.shape else torch.nan
        if not torch.allclose(logits, self.factor * ramp, rtol=1e-2, atol=1e-2):
            raise ValueError(
                "model: expected its unembedding's outputs, times a number, as logits, got others, such as capped ones"
            )
        total = sum(
            part.factor * self.spread(self.written[self.modules[part.writer]])[:, -1].double() for part in parts
        )
        wide = self.end.abs().max() * (1e-4 if self.written[self.modules[parts[0].writer]].element_size() > 2 else 0.1)
        if (total - self.end).abs().max() > wide:
            raise ValueError(
                f"model: its stream cannot be followed at {final.name}: the parts do not add up to its input"
            )

    def ends(self, before: list, after: list) -> Tensor:
        """The end of the stream at the last position, ``(batch, d)`` float64, in a run with these hooks."""
        return self._run(before, after)[0]

    def _run(self, before: list, after: list) -> tuple[Tensor, Tensor]:
        seen = []

        def keep(module, args, kwargs):
            seen.append(self.spread(args[0])[:, -1].double())

        def last(module, args, kwargs):
            return (self.spread(args[0])[:, -1:], *args[1:]), kwargs

        with evaluating(self.model), hooked([*before, (self.final.module, keep), (self.head, last)], after):
            output = forward(self.model, self.inputs)
        return seen[-1], _logits(output)

    def spread(self, y: Tensor) -> Tensor:
        """Vectors ``(batch, length, …)`` of what may be flattened, or the same for all sequences."""
        batch, length = self.ids.shape
        y = y.reshape(-1, length, y.shape[-1])
        return y.expand(batch, *y.shape[1:])

    def _keep_read(self, module, args, kwargs):
        self.read[module] = args[0].clone()

    def _keep_written(self, module, args, kwargs, output):
        self.written[module] = output.clone()  # which the model may add to in place


def _logits(output: object) -> Tensor:
    return output if isinstance(output, Tensor) else getattr(output, "logits", output[0])


def _reads(final: NormSite, w: Tensor, x: Tensor) -> Tensor:
    return (w * projected(final, x)).sum(-1) * per_unit(final, x).squeeze(-1)


def _read(run: _Run, answer, against) -> tuple[Tensor, Tensor]:
    """What reads the logit from n, ``(batch, d)``, and what the biases add to it, ``(batch,)``."""
    matrix = matrix_of(run.head, WRITES)
    weight = getattr(run.head, matrix.weight).movedim(matrix.axis, 0)
    bias = getattr(run.head, matrix.bias, None)
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    rows, added = 0.0, 0.0
    for sign, name, tokens in ((1, "answer", answer), (-1, "against", against)):
        if tokens is not None:
            tokens = _tokens(name, tokens, len(run.ids), len(weight)).to(weight.device)
            rows, added = rows + sign * weight[tokens].double(), added + sign * bias[tokens].double()
    gain, shift = (parameter().detach().to(rows) for parameter in acting(run.final))
    return run.factor * gain * rows, run.factor * (rows @ shift + added)


def _tokens(name: str, tokens: object, count: int, vocabulary: int) -> Tensor:
    ids = torch.as_tensor(tokens)
    if ids.is_floating_point() or ids.dim() > 1 or (ids.dim() == 1 and len(ids) != count):
        raise ValueError(f"{name}: expected a token id, or one for each of {count} sequences, got {tokens!r}")
    if bool(((ids < 0) | (ids >= vocabulary)).any()):
        raise ValueError(f"{name}: expected ids from 0 to {vocabulary - 1}, got {tokens!r}")
    return ids.expand(count)


def _piece(run: _Run, part: _Part, replaced: Callable) -> _Piece:
    module = run.modules[part.writer]
    written = run.spread(run.written[module])
    instead = replaced(written)

    def replace(module, args, kwargs, output):
        return instead.reshape(-1)[: output.numel()].reshape(output.shape)

    change = part.factor * (written.double() - instead.double())[:, -1]
    return _Piece(part.name, change, ([], [(module, replace)]))


def _heads(run: _Run, part: _Part, replaced: Callable) -> list[_Piece]:
    module = run.modules[part.map]
    count = getattr(getattr(run.model, "config", None), "num_attention_heads", None)
    read = run.spread(run.read[module])
    if not count or read.shape[-1] % count:
        raise ValueError(f'by: "head" needs config.num_attention_heads, which divides what {part.map} reads')
    size, pieces = read.shape[-1] // count, []
    without = read - replaced(read)
    for number in range(count):
        own = slice(number * size, (number + 1) * size)
        alone = torch.zeros_like(read[:, -1:])
        alone[..., own] = without[:, -1:, own]
        change = part.factor * _carried(run, part, module(alone) - module(torch.zeros_like(alone)))
        pieces.append(
            _Piece(
                f"head {part.name.removeprefix('attn ')}.{number}",
                change,
                ([(module, _replace_head(read, own, replaced))], []),
            )
        )
    return pieces


def _replace_head(read: Tensor, own: slice, replaced: Callable) -> Callable:
    instead = replaced(read[..., own])

    def replace(module, args, kwargs):
        changed = args[0].clone()
        changed[..., own] = instead.reshape(*changed.shape[:-1], -1)
        return (changed, *args[1:]), kwargs

    return replace


def _carried(run: _Run, part: _Part, y: Tensor) -> Tensor:
    """What the output ``y`` of a part's map, ``(batch, 1, d)``, is on the stream, ``(batch, d)`` float64."""
    y = y[:, -1].double()
    if part.norm is None:
        return y
    gain, _ = acting(part.norm)
    read = run.spread(run.read[part.norm.module])[:, -1].double()
    return projected(part.norm, y) * per_unit(part.norm, read) * gain().to(y)
