"""Attribution on published models, tried on tiny ones: gradients and mechanisms against models changed by hand."""

from contextlib import nullcontext

import normgeom as ng
import pytest
import torch
from drawn_weights import perturbed
from normgeom.models.attribution import effects
from normgeom.models.watch import hooked
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from experiments import real_attribution
from experiments.real_attribution import branches, predicted_totals

SIZES = dict(vocab_size=50, hidden_size=12, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1)
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=4)),
    "gemma": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, num_hidden_layers=4, head_dim=8)),
}
WINDOWS = torch.randint(50, (4, 9), generator=torch.Generator().manual_seed(5))
IDS, ANSWER = WINDOWS[:, :-1], WINDOWS[:, -1:]
HEADS = [(block, head) for block in (2, 3) for head in (0, 1)]  # of the second half


@pytest.fixture(params=FAMILIES)
def model(request, monkeypatch):
    made = perturbed(FAMILIES[request.param])
    monkeypatch.setattr(real_attribution, "language_model", lambda name: (made, None))
    monkeypatch.setattr(real_attribution, "blocks", lambda tokenizer, part, count, length: WINDOWS)
    return made


def logits(model, **hooks):
    with torch.no_grad(), hooked(**hooks):
        return model(IDS, use_cache=False).logits[:, -1]


def writes(model, part, change):
    return dict(after=[(model.get_submodule(part.writer), lambda module, args, kwargs, y: change(y))])


def towards_mean(y, share=1.0, where=slice(1, None), entries=slice(None)):
    """y, a share of the way to its mean over texts and positions but the first."""
    changed, mean = y.clone(), y[:, 1:, entries].mean((0, 1))
    changed[:, where, entries] += share * (mean - changed[:, where, entries])
    return changed


def test_branches_are_all_that_is_added_to_the_embedding(model):
    parts, seen = branches(model, IDS), {}
    assert [part.name for part in parts] == [f"{kind} {block}" for block in range(4) for kind in ("attn", "mlp")]
    names = [*(part.writer for part in parts), "model.embed_tokens", "model.norm"]
    keep = lambda name: lambda module, args, kwargs, y: seen.update({name: (args[0], y)})  # noqa: E731
    logits(model, after=[(model.get_submodule(name), keep(name)) for name in names])
    end, _ = seen.pop("model.norm")
    assert torch.allclose(sum(y for _, y in seen.values()), end, atol=1e-4)


@pytest.mark.parametrize("held", (False, True))
def test_predicted_totals_are_finite_differences(model, held):
    t = 0.002
    with ng.held_scales(model, IDS) if held else nullcontext():
        found = predicted_totals(model, IDS, ANSWER[:, 0], None, "mean")
        for part in branches(model, IDS):
            less, more = (logits(model, **writes(model, part, lambda y, s=s: towards_mean(y, s))) for s in (t, -t))
            slope = (more - less).gather(1, ANSWER)[:, 0] / (2 * t)
            assert (found[part.name] - slope).abs().max() < 0.01 * slope.abs().max(), part.name


def test_the_last_position_only(model):
    table = real_attribution.of_parts("tiny", "valid", "last")["published-credits"].set_index("part")
    before, rival = logits(model), real_attribution.case("tiny", "valid")[3][:, None]
    wanted = lambda z: z.gather(1, ANSWER) - z.gather(1, rival)  # noqa: E731
    for part in branches(model, IDS):
        after = logits(model, **writes(model, part, lambda y: towards_mean(y, where=slice(-1, None))))
        assert table.total[part.name] == pytest.approx(float((wanted(before) - wanted(after)).mean()), abs=1e-3)
    assert table.total["mlp 3"] == pytest.approx(table.direct["mlp 3"], abs=1e-3), "nothing follows it"


def test_agreements_are_rank_correlations_text_by_text(model):
    found = real_attribution.of_parts("tiny", "valid", "resample")["published-agreement"].set_index("pair")
    rival = real_attribution.case("tiny", "valid")[3]
    values = effects(model, IDS, ANSWER[:, 0], rival, "resample")[1]
    values = values[:, :-1]
    ranks = values.argsort(1).argsort(1).double()
    z = ranks - ranks.mean(1, keepdim=True)
    z = z / z.norm(dim=1, keepdim=True)  # (4, parts, texts)
    assert found["rank"]["direct, total"] == pytest.approx(float((z[1] * z[2]).sum(0).mean()), abs=1e-4)
    assert found["other"]["credit, total"] == pytest.approx(float((z[0] * z[2].roll(-1, 1)).sum(0).mean()), abs=1e-4)
    top = logits(model).argmax(1) == ANSWER[:, 0]
    own = (z[0] * z[1]).sum(0)[top].mean() if top.any() else torch.nan
    assert found["top"]["credit, direct"] == pytest.approx(float(own), abs=1e-4, nan_ok=True)
    assert found["low"]["total, mean"] <= found["rank"]["total, mean"] <= found["high"]["total, mean"]


def without_head(model, rival, block, head, share=1.0):
    """The logit of the next token less its rival's, and the final scale, without a share of a head."""
    module, scale = model.model.layers[block].self_attn.o_proj, []
    own = slice(head * module.in_features // 2, (head + 1) * module.in_features // 2)
    cut = lambda module, args, kwargs: ((towards_mean(args[0], share, entries=own),), kwargs)  # noqa: E731
    keep = lambda module, args, kwargs: scale.append((args[0][:, -1].square().mean(-1) + 1e-6).sqrt())  # noqa: E731
    z = logits(model, before=[(module, cut), (model.model.norm, keep)])
    return (z.gather(1, ANSWER) - z.gather(1, rival[:, None]))[:, 0], scale[0]


def test_mechanisms_are_what_scales_do_in_whole_runs(model):
    rival = real_attribution.case("tiny", "valid")[3]
    (whole, s), *live = (without_head(model, rival, i, j, k) for i, j, k in [(0, 0, 0), *((*at, 1) for at in HEADS)])
    with ng.held_scales(model, IDS):
        held = torch.stack([without_head(model, rival, *at)[0] for at in HEADS])
    names, values = effects(model, IDS, ANSWER[:, 0], rival, by="head")
    credit, total = values[:3:2, [names.index(f"head {i}.{j}") for i, j in HEADS]].float()
    final = torch.stack([z * (1 - scale / s) for z, scale in live])
    rest = credit - (whole - held)
    found = real_attribution.repair("tiny", "valid").set_index(["against", "of", "mechanism"]).share["rival"]
    for mechanism, part in dict(final=final, rest=rest, inner=credit - total - rest - final).items():
        share = (part * credit.sign()).sum() / credit.abs().sum()
        assert found["credit"][mechanism] == pytest.approx(float(share), rel=1e-2, abs=1e-3)
    assert found["repair"].sum() == pytest.approx(1, abs=1e-3)
