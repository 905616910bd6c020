"""Change the weights of a pre-norm model so that its norms have no gain, no bias, or no mean to subtract."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normgeom.models.flow import Trial, answer, call_of, cpu_copy, dtype_of, project_input
from normgeom.models.judgement import Flow, judged
from normgeom.models.trace import READS, WRITES, matrix_of
from normgeom.models.watch import Hooks, hooked, replace_module, undone_by_errors
from normgeom.norms.functions import RMSNorm
from normgeom.surgery.proof import BOUND, answers, change_of, prove

_FAR, _FAR_BOUND = 2.0**20, 1e-3  # a mean beyond every bound on a stream, and the change that rounding can cause


def fold_norms(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> nn.Module:
    r"""Move gain and bias of each norm into the linear maps that read it; the model still computes the same function.

    A reader :math:`W(\gamma\odot n+\beta)+b` becomes :math:`(W\operatorname{diag}\gamma)\,n+(b+W\beta)`
    (eq-fold-norms); then γ is 1 and β is 0, and both remain parameters.  If β is not zero, a reader without a bias gets
    one, and so does the language-modelling head, over the vocabulary.  A head that shares the embedding's weight gets
    its own.  If the effective gain is ``1 + weight`` (Gemma), that sum is folded and ``weight`` becomes 0.  If
    something else reads a norm too, the norm keeps gain and bias; a warning names the first such norm of the stream.

    Args:
        model: a model with LayerNorm or RMSNorm in any placement; changed in place.  Float64 copies are changed and
            tried first, one after the other, with random weights and with the model's own; there outputs may change by
            1e-10 of the largest output.  Then the model is changed and tried in its dtype, where outputs may change by
            as much as rounding explains; if they change by more, it gets back what it was.  Each runs before and after
            the change on the example; the model and the copy with random weights also on half and twice of it along
            each of its first two axes, and on the example with its first token as padding, if they take an
            ``attention_mask``.  :func:`to_rms_norm` says what is not tested.  This takes twice the memory of float32
            weights, one run with gradients, and thirty without.
        example_inputs: inputs for these runs, as in :func:`normgeom.find_norms`.

    Returns:
        the model.  Products are computed in float64 and cast once to the parameter's dtype.

    Raises:
        ValueError: no norm can be folded; a linear map did not run on the example; a parameter has 8 bits, is computed
            from others or shared; they are on the meta device or on several devices.  The model is unchanged.
        TypeError: an example is needed.

    Source: Elhage et al. (2021).

    >>> import torch, normgeom as ng
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    >>> model[1].weight.data.fill_(2.0).tolist()
    [2.0, 2.0, 2.0, 2.0]
    >>> ng.fold_norms(model, torch.ones(5, 3))[1].weight.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return _operate(model, [_untie, _fold], example_inputs)


def center_writers(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> nn.Module:
    r"""Remove the mean from everything that writes to the residual stream of a pre-norm LayerNorm model.

    Embeddings, output matrices and their biases become :math:`\Pi W` and :math:`\Pi b` (eq-center-writers).  Each
    reader reads the stream through a LayerNorm, which subtracts the mean anyway, so the model still computes the same
    function; but at every norm the stream is now orthogonal to 1, up to rounding.  A head that shares the embedding's
    weight gets its own.  If a stream begins after a nonlinear map, as in Whisper's encoder, no weights determine its
    mean.  Then one projection is inserted before the module that reads the stream first; a warning names this module.

    Args:
        model, example_inputs: as in :func:`fold_norms`, which says on which inputs the model is tried.

    Returns:
        the model.

    Raises:
        ValueError: as in :func:`fold_norms`; also if no weights determine the mean of the stream, if anything but a
            LayerNorm reads the stream, or if the example does not use all parameters.
        TypeError: an example is needed.

    Source: Jiang et al. (2023).

    >>> import torch, normgeom as ng
    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    >>> ng.center_writers(model, torch.arange(9))[0].weight.mean(1).abs().max() < 1e-6
    tensor(True)
    """
    return _operate(model, [_untie, _center], example_inputs)


def to_rms_norm(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> nn.Module:
    r"""Turn a pre-norm LayerNorm model into an RMSNorm model that computes the same function (thm-to-rms-norm).

    :math:`\mathrm{LN}_\varepsilon(x)=\mathrm{RMSNorm}_\varepsilon(\Pi x)` with the same ε.  :func:`fold_norms` sets γ
    to 1 and β to 0, :func:`center_writers` makes :math:`\Pi x=x` at every norm of the stream, and then each LayerNorm
    there becomes a :class:`normgeom.RMSNorm` with its ε and gain 1.  Other norms, such as those of queries and keys, do
    not change.

    The models are equal in exact arithmetic, in evaluation mode and on token ids.  Dropout on the stream, or
    ``inputs_embeds`` from elsewhere, can add a mean that no norm subtracts any more.  In floating point the changed
    weights are rounded to their dtype, which is noticeable in bfloat16.  From a folder of ``save_pretrained``,
    transformers loads a LayerNorm model without the new biases; use ``normgeom convert`` and :func:`load_converted`.

    The runs before and after the change (see :func:`fold_norms`) cannot show everything; these limits hold for all
    surgery.  A branch that only other inputs reach, such as texts of a thousand tokens, is not seen.  If a model has
    ``logits``, its hidden states are not compared, and they change.  A bound that only larger vectors reach is seen if
    it is on the stream or between a norm and its readers.  Code that reads parameters outside of a run, such as a
    penalty on gains, reads the changed ones.  As wherever this library looks at a run, the model itself runs: counters
    in its buffers count, and ``max_norm`` of an embedding shortens its rows.  If a norm is called on pieces of texts,
    the first vector of each piece counts as the first of a text; padding that a model adds itself, as Longformer does,
    is measured too.

    Args:
        model, example_inputs: as in :func:`fold_norms`, which says on which inputs the model is tried.

    Returns:
        the model.

    Raises:
        ValueError: as in :func:`center_writers`; also if anything but linear maps reads a norm of the stream.
        TypeError: an example is needed.

    Source: Jiang et al. (2023).

    >>> import torch, normgeom as ng
    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    >>> ng.to_rms_norm(model, torch.arange(9))[1]
    RMSNorm((4,), eps=1e-05, elementwise_affine=True)
    """
    return _operate(model, [_untie, _fold, _center, _swap], example_inputs)


@torch.no_grad()
def _operate(model: nn.Module, steps: list[Callable], example_inputs: Tensor | Mapping | None) -> nn.Module:
    """Apply the steps after copies have shown that they change no output."""
    call = call_of(model, example_inputs)
    before = answers(model, call)  # first: a table that the code caches keeps the dtype of the first run
    trial = Trial(model, example_inputs)
    flow = judged(trial.trace)
    if _center in steps and flow.blocked and all(norm.kind == "layer" for norm in flow.norms):
        flow = trial.projected(flow)
    if _swap in steps:
        flow = flow._replace(aside=())
    for reason in _reasons(model, trial, flow, steps):
        raise ValueError(f"model: {reason}")

    def take(model: nn.Module) -> None:
        for step in steps:
            step(model, flow)

    replaced = [norm.name for norm in flow.norms if _swap in steps]
    drawn = trial.model
    del trial  # its trace keeps weights in memory
    prove(drawn, take, replaced, call, "random weights")
    del drawn  # before the next copy is made
    if dtype_of(model) != torch.float64:
        copied = cpu_copy(model)
        prove(copied, take, replaced, call, "its own weights", {"the example": answer(copied, call)})
        del copied
    with undone_by_errors(model):
        prove(model, take, replaced, call, "its own weights", before or {"the example": answer(model, call)})
    if _fold in steps and (kept := next((norm.kept for norm in flow.norms if norm.kept), None)):
        warnings.warn(f"norms of the stream keep gain and bias: {kept}", stacklevel=3)
    if flow.projected:
        warnings.warn(f"no weights centre the input of {flow.projected}, so a projection does", stacklevel=3)
    return model


def _reasons(model: nn.Module, trial: Trial, flow: Flow, steps: list[Callable]) -> Iterator[str]:
    kind, norms = type(model).__name__, (*flow.norms, *flow.aside)
    if _center in steps:
        if flow.obstacle:
            yield flow.obstacle
        for name in (norm.name for norm in flow.norms if norm.kind == "rms"):
            found = type(model.get_submodule(name)).__name__
            yield f"expected LayerNorms on the stream of this {kind}, but {name}, a {found}, does not subtract the mean"
    if _swap in steps or (_fold in steps and all(norm.kept for norm in norms)):
        yield from (norm.kept for norm in norms if norm.kept)
    if flow.unseen:
        yield flow.unseen
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter or parameter.dtype.itemsize == 1:
            found = f"{name} is a {type(parameter).__name__} of {parameter.dtype}"
            yield f"expected plain parameters of 16 bits or more, {found}"
        if parameter.is_inference():
            yield f"expected parameters that can be changed, {name} was made in torch.inference_mode()"
    before = trial.answer()
    for what, bound, hooks in _far(trial.model, flow, steps):
        with hooked(*hooks):
            moved = change_of(trial.answer(), before)
        if not moved <= bound:
            yield f"a copy of this {kind} computes something else {what}, by {moved:.1e} of the largest output"


def _far(model: nn.Module, flow: Flow, steps: list[Callable]) -> Iterator[tuple[str, float, tuple[Hooks, Hooks]]]:
    """Changes by hooks that must not move an output, and that reach what no example does: in words, bound, hooks."""

    def maps(names: Iterable[str]) -> list[nn.Module]:
        return [m for m in map(model.get_submodule, names) if not isinstance(m, nn.MultiheadAttention)]

    yield "when it runs again: it draws random numbers, or keeps something from an earlier call", BOUND, ((), ())
    for far in (_FAR, -_FAR) if _center in steps else ():
        raised = [(module, lambda *call, far=far: call[-1] + far) for module in maps(flow.writers)]
        yield "when a number is added to all entries of its stream: the mean matters", _FAR_BOUND, ((), raised)
    folded = [norm for norm in (*flow.norms, *flow.aside) if _fold in steps and not norm.kept]
    folded = [norm for norm in folded if len(maps(norm.readers)) == len(norm.readers)]
    readers = [module for norm in folded for module in maps(norm.readers)]
    grown = [(module, lambda *call: call[-1] * _FAR) for module in maps(norm.name for norm in folded)]
    shrunk = [(module, lambda _, *given: tree_map(lambda x: x / _FAR, given)) for module in readers]
    yield "when norms return larger vectors and their readers shrink them again", BOUND, (shrunk, grown)


def _untie(model: nn.Module, flow: Flow) -> None:
    """Give a head that shares an embedding's weight a copy of its own."""
    names = {module: name for name, module in model.named_modules()}
    weights = (module.weight for module in names if isinstance(module, nn.Embedding))
    embeddings = {id(weight): weight for weight in weights}  # kept: the id of a computed weight would be used again
    tied = [m for m in names if not isinstance(m, nn.Embedding) and id(getattr(m, "weight", None)) in embeddings]
    for module in tied:
        module.weight = nn.Parameter(module.weight.detach().clone(), requires_grad=module.weight.requires_grad)
    by_name = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    head_of = getattr(model, "get_output_embeddings", lambda: None)
    if by_name and (head := head_of()) is not None:
        model.config.tie_word_embeddings = False
        getattr(model, "all_tied_weights_keys", {}).pop(f"{names[head]}.weight", None)


def _fold(model: nn.Module, flow: Flow) -> None:
    for norm in (norm for norm in (*flow.norms, *flow.aside) if not norm.kept):
        module = model.get_submodule(norm.name)
        (w, offset), (b, _) = norm.sources
        gain = _wide(getattr(module, w)) + offset if w else torch.ones(norm.dim, device="cpu")
        bias = _wide(getattr(module, b)) if b else torch.zeros(norm.dim, device="cpu")
        for reader in map(model.get_submodule, norm.readers):
            matrix = matrix_of(reader, READS)
            weight = getattr(reader, matrix.weight)
            if bias.any():
                if getattr(reader, matrix.bias) is None:
                    make_bias(reader)
                old = getattr(reader, matrix.bias)
                _set(old, _wide(old) + torch.tensordot(_wide(weight), bias, dims=([matrix.axis], [0])))
            _set(weight, _wide(weight) * (gain if matrix.axis else gain[:, None]))
        if b:
            _set(getattr(module, b), torch.zeros_like(bias))
        if w:
            _set(getattr(module, w), torch.full_like(gain, 1 - offset))


def make_bias(reader: nn.Module) -> None:
    matrix = matrix_of(reader, READS)
    weight = getattr(reader, matrix.weight)
    zeros = weight.new_zeros(weight.shape[1 - matrix.axis])
    setattr(reader, matrix.bias, nn.Parameter(zeros, requires_grad=weight.requires_grad))
    if isinstance(reader, nn.MultiheadAttention) and reader.out_proj.bias is None:
        make_bias(reader.out_proj)  # torch's fast path needs both or none


def _center(model: nn.Module, flow: Flow) -> None:
    if flow.projected:
        project_input(model.get_submodule(flow.projected))
    tensors = [(model.get_parameter(name), -1) for name in flow.added]
    for module in map(model.get_submodule, flow.writers):
        matrix = matrix_of(module, WRITES)
        tensors.append((attrgetter(matrix.weight)(module), matrix.axis))
        if matrix.bias and (bias := attrgetter(matrix.bias)(module)) is not None:
            tensors.append((bias, 0))
    for tensor, axis in tensors:
        _set(tensor, _wide(tensor) - _wide(tensor).mean(axis, keepdim=True))


def _swap(model: nn.Module, flow: Flow) -> None:
    for of in flow.norms:
        norm = model.get_submodule(of.name)
        like = next(norm.parameters(), next(model.parameters()))
        replace_module(model, norm, RMSNorm(of.dim, eps=of.eps).to(like).requires_grad_(like.requires_grad))


def _set(parameter: Tensor, value: Tensor) -> None:
    parameter.data = value.to(parameter)  # not in place: another tensor may share the memory


def _wide(tensor: Tensor) -> Tensor:
    return tensor.cpu().double()  # some devices have no float64
