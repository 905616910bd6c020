"""Ways to the vectors at a model's norms: a survey, and what other tools offer, with statistics of the same kind."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import normgeom as ng
import pandas as pd
import torch
from normgeom.survey.directions import unit
from normgeom.survey.meter import quantiles
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

DIRECTIONS, SEED, BINS = ("uniform", "random_a", "random_b"), 0, 720

Place = tuple[str, str]  # a norm's name and "in" or "out"
Prepared = tuple[Callable[[Tensor], object], Callable[[], pd.DataFrame]]  # measure one batch; what has been measured


class Angles:
    """The statistics of a survey in plain torch, for vectors that something else hands out.

    Sums and a histogram for each place where vectors come from, of the same size however many come.  It does less than
    :class:`normgeom.Survey`: products are float32, first positions are not kept apart, nothing is said of NaN, of the
    largest coordinate or of what dropping the mean would do.
    """

    def __init__(self, d: int, device: torch.device | str = "cpu"):
        self._units = torch.stack([unit(name, d, SEED) for name in DIRECTIONS]).float().to(device)
        self._offsets = BINS * torch.arange(len(DIRECTIONS), device=device)[:, None]
        self._seen: dict[Place, tuple[int, Tensor, Tensor]] = {}

    def add(self, place: Place, x: Tensor) -> None:
        """Vectors ``(..., d)``, on the device of the model; widened to float32."""
        rows = x.reshape(-1, x.shape[-1]).float()
        norm = torch.linalg.vector_norm(rows, dim=-1)
        cos = nn.functional.linear(rows, self._units).T / norm
        beyond = torch.rad2deg(torch.acos(cos.clamp(-1, 1))) - 90  # small, so that squares lose nothing
        values = torch.stack([beyond, beyond.square(), cos.square(), cos.abs(), norm.expand_as(cos)])
        bins = ((beyond + 90) * (BINS / 180)).long().clamp(0, BINS - 1) + self._offsets
        counts = torch.bincount(bins.flatten(), minlength=self._offsets.numel() * BINS).view(-1, BINS)
        n, sums, counted = self._seen.get(place, (0, 0, 0))
        self._seen[place] = n + len(rows), sums + values.sum(-1, dtype=torch.float64), counted + counts

    def table(self) -> pd.DataFrame:
        """One row a (site, side, direction), columns as in :meth:`normgeom.Survey.table`."""
        rows = []
        for (site, side), (n, sums, counts) in self._seen.items():
            beyond, square, cos2, abs_cos, norm = (sums / n).cpu()
            cut = quantiles(counts.cpu(), 0, 180, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
            for j, direction in enumerate(DIRECTIONS):
                rows.append(
                    dict(
                        site=site,
                        side=side,
                        direction=direction,
                        tokens=n,
                        mean_deg=float(90 + beyond[j]),
                        std_deg=float((square[j] - beyond[j] ** 2).sqrt()),
                        **dict(zip(("q05_deg", "q50_deg", "q95_deg"), cut[j].tolist(), strict=True)),
                        mean_abs_cos=float(abs_cos[j]),
                        occupancy=self._units.shape[1] * float(cos2[j]),
                        mean_norm=float(norm[j]),
                    )
                )
        return pd.DataFrame(rows, columns=None if rows else ["site", "side", "direction"])


def bare(model: GPT2LMHeadModel) -> Prepared:
    """The forward pass alone."""
    return model, Angles(model.config.n_embd, model.device).table


def survey(model: GPT2LMHeadModel) -> Prepared:
    """Every norm, in and out."""
    measured = ng.Survey(model, DIRECTIONS, SEED)
    return lambda ids: measured.run([ids], progress=False), lambda: measured.table().query("positions == 'all'")


def watched(model: GPT2LMHeadModel) -> Prepared:
    """The hooks on which a survey rests, with the plain statistics of the other ways."""
    angles, sites = Angles(model.config.n_embd, model.device), ng.find_norms(model)

    def look(site: ng.NormSite, x_in: Tensor, x_out: Tensor) -> None:
        angles.add((site.name, "in"), x_in)
        angles.add((site.name, "out"), x_out)

    def run(ids: Tensor) -> None:
        with ng.watch(model, sites, look):
            model(ids)

    return run, angles.table


def hidden_states(model: GPT2LMHeadModel) -> Prepared:
    """What transformers returns: the input of each block, which is its first norm's, and the last norm's output."""
    angles = Angles(model.config.n_embd, model.device)
    places = [(f"transformer.h.{i}.ln_1", "in") for i in range(model.config.n_layer)] + [("transformer.ln_f", "out")]

    def run(ids: Tensor) -> None:
        states = model(ids, output_hidden_states=True).hidden_states
        for place, x in zip(places, states, strict=True):
            angles.add(place, x)

    return run, angles.table


def lens_cache(model: GPT2LMHeadModel) -> Prepared:
    """TransformerLens: ``run_with_cache`` keeps what ``names_filter`` names, all of it until the pass is over."""
    bridge, hooks, angles = _bridge(model)

    def run(ids: Tensor) -> None:
        _, cache = bridge.run_with_cache(ids, names_filter=list(hooks))
        for hook, place in hooks.items():
            angles.add(place, cache[hook])

    return run, angles.table


def lens_hooks(model: GPT2LMHeadModel) -> Prepared:
    """TransformerLens: ``run_with_hooks`` hands each vector over as it comes and keeps none."""
    bridge, hooks, angles = _bridge(model)

    def look(x: Tensor, hook) -> None:
        angles.add(hooks[hook.name], x)

    return lambda ids: bridge.run_with_hooks(ids, fwd_hooks=[(hook, look) for hook in hooks]), angles.table


def nnsight_trace(model: GPT2LMHeadModel) -> Prepared:
    """nnsight: the statistics stand in the trace, which runs beside the model and needs to save nothing."""
    import nnsight

    traced, angles = nnsight.NNsight(model), Angles(model.config.n_embd, model.device)
    norms = [(site.name, traced.get(site.name)) for site in ng.find_norms(model)]

    def run(ids: Tensor) -> None:
        with traced.trace(ids):
            for name, norm in norms:
                angles.add((name, "in"), norm.input)
                angles.add((name, "out"), norm.output)

    return run, angles.table


def _bridge(model: GPT2LMHeadModel) -> tuple[nn.Module, dict[str, Place], Angles]:
    """TransformerLens's model on the weights and attention of ``model``, and its hooks at the norms."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    sites = [site.name for site in ng.find_norms(model)]
    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)
    theirs = [
        name.replace("transformer.h.", "blocks.").replace("ln_", "ln").replace("transformer.lnf", "ln_final")
        for name in sites
    ]
    hooks = {f"{a}.hook_{side}": (b, side) for a, b in zip(theirs, sites, strict=True) for side in ("in", "out")}
    return bridge, hooks, Angles(model.config.n_embd, model.device)


@dataclass(frozen=True)
class Way:
    """A way to vectors of a model; ``package`` is what it takes beyond the project, ``read`` where we found it."""

    prepare: Callable[[GPT2LMHeadModel], Prepared]
    package: str | None = None
    read: str | None = None

    @property
    def present(self) -> bool:
        return self.package is None or importable(self.package)


def importable(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


WAYS = {
    "bare forward": Way(bare),
    "Survey": Way(survey),
    "watch": Way(watched),
    "output_hidden_states": Way(hidden_states),
    "TransformerLens run_with_cache": Way(
        lens_cache,
        "transformer_lens",
        "README and docstrings of run_with_cache, which by default asks for the attention patterns too, and of "
        "build_bridge_from_module, which takes a model that is there already",
    ),
    "TransformerLens run_with_hooks": Way(lens_hooks, "transformer_lens", "docstring of run_with_hooks"),
    "nnsight trace": Way(nnsight_trace, "nnsight", "README: statistics in the trace, on the values as they come"),
}
