"""Measurements on published models, tried on tiny ones: each number against a longer way to it."""

import normgeom as ng
import pandas as pd
import pytest
import torch
from drawn_weights import perturbed
from normgeom.surgery.ablation import ReducedNorm
from torch.nn.functional import normalize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from experiments import real_costs, real_gains
from experiments.real_angles import described, drawn
from experiments.real_costs import Changeable
from experiments.real_models import direction, removed, replaced, sites_of
from experiments.real_speech import dropped, word_errors

SIZES = dict(vocab_size=50, hidden_size=12, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1)
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=3)),
    "gemma": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, num_hidden_layers=3, head_dim=8)),
}
IDS = torch.randint(50, (4, 9), generator=torch.Generator().manual_seed(5))


@pytest.fixture(params=FAMILIES)
def model(request):
    return perturbed(FAMILIES[request.param])


def losses(model, ids, kept):
    with torch.no_grad():
        logp = model(ids).logits[:, :-1].log_softmax(-1)
    return -logp.gather(-1, ids[:, 1:, None])[:, kept, 0], logp[:, kept]


def test_a_cost_is_that_of_the_whole_model_run_again(model):
    network = Changeable(model, IDS)
    before, logp = losses(model, IDS, network.predicted)
    for site in (network.sites[i] for i in (0, 1, 5, -1)):
        frozen = network.frozen([site]).assign(direction="frozen")
        constant = float((network.inputs[site.name][:, 1:].square().mean(-1) + site.eps).sqrt().mean())
        rows = pd.concat([network.without_directions([site]), frozen]).set_index("direction")
        for name, changed in (
            ("signs_001", removed({site.module: direction("signs_001", site.dim)}, spare_first=True)),
            ("frozen", replaced({site.module: ReducedNorm(site, False, constant)}, spare_first=True)),
        ):
            with changed:
                after, changed_logp = losses(model, IDS, network.predicted)
            kl = (logp.exp() * (logp - changed_logp)).sum(-1).mean(1)
            assert torch.allclose(torch.tensor(rows.loc[name, "cost"].values), (after - before).mean(1), atol=1e-5)
            assert torch.allclose(torch.tensor(rows.loc[name, "kl"].values), kl, atol=1e-5)


def test_a_removal_leaves_nothing_along_the_direction_but_at_the_first_position(model):
    site, u, seen = sites_of(model)[2], direction("random_000", 12), []
    with removed({site.module: u}, True), ng.watch(model, [site], lambda _, x, y: seen.append(x @ u)):
        model(IDS)
    assert seen[0][:, 1:].abs().max() < 1e-5 < seen[0][:, 0].abs().min()


def test_a_norm_is_replaced_but_at_the_first_position(model):
    norm, x = sites_of(model)[2].module, torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    y = norm(x)
    with replaced({norm: torch.nn.Identity()}, spare_first=True):
        assert torch.equal(norm(x), torch.cat([y[:, :1], x[:, 1:]], 1))
    assert torch.equal(norm(x), y)


def test_the_predicted_change_is_the_mean_over_all_signs(model):
    network = Changeable(model, IDS)
    site = network.sites[3]
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 12)[:2048]  # u and -u are one
    x = network.inputs[site.name] = network.inputs[site.name] * 1e3  # no ε
    moved = torch.stack([network.moved(site, u) for u in normalize(signs, dim=-1)]).mean(0)
    c2 = ((x[:, 1:] @ normalize(signs, dim=-1).T) ** 2 / x[:, 1:].square().sum(-1, keepdim=True)).max()
    assert torch.allclose(moved, network.moved_by_signs(site), rtol=2 * float(c2))  # to first order in c²


def test_angles_and_occupancies_are_a_surveys(model):
    sites, seen = sites_of(model), {}
    with ng.watch(model, sites, lambda site, x, _: seen.update({site.name: x})):
        survey = ng.Survey(model, ["uniform"], example_inputs=IDS).run([IDS], progress=False).table()
    rows = survey.query("side == 'in' and positions == 'rest' and dim == 12").set_index("site")
    for name, x in seen.items():
        found = described(x)
        assert found["mean_deg"] == pytest.approx(rows.mean_deg[name], rel=1e-3)
        assert found["std_deg"] == pytest.approx(rows.std_deg[name], rel=0.03)  # over n − 1
        assert found["occupancy"] == pytest.approx(rows.occupancy[name], rel=1e-3)
        assert found["length"] == pytest.approx(rows.mean_norm[name], rel=1e-3)


def test_signs_are_counted_and_the_largest_coordinate_is_named():
    x = torch.randn(2, 41, 12, generator=torch.Generator().manual_seed(0)) + 9 * torch.eye(12)[[7]]
    row, rest = described(x), x[:, 1:].flatten(0, 1)
    by_sign = 12 * (normalize(rest, dim=-1).double() @ drawn("signs", 12).T).square().mean(0)
    assert row["largest"] == 7 and row["below"] == pytest.approx(int((by_sign < row["occupancy"]).sum()), abs=2)
    assert row["top_share"] == pytest.approx(float(normalize(rest, dim=-1).square().mean(0).max()), rel=1e-3)
    assert row["first_top_share"] == pytest.approx(float(x[0, 0].square().max() / x[0, 0].square().sum()), rel=1e-3)


def test_blocks_are_grouped_by_text(model):
    network = Changeable(model, IDS.repeat(3, 1))
    rows = network.without_directions(network.sites[:1])
    found = real_costs.mean_costs(rows, ("valid", "test"), 6).set_index(["direction", "text"])
    uniform = rows[rows.direction == "uniform"]
    assert found.cost["uniform", "valid"] == pytest.approx(uniform.cost[uniform.block < 6].mean())
    last = uniform.cost[uniform.block >= 6]
    assert found.cost["uniform", "test"] == pytest.approx(last.mean())
    assert found.se["uniform", "test"] == pytest.approx(last.std(ddof=1) / 6**0.5)


def test_dropping_for_a_while_is_dropping():
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.LayerNorm(8))
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    with dropped(ng.find_norms(net, x)), torch.no_grad():
        y = net(x)
    assert torch.equal(y, ng.drop_mean_subtraction(net, example_inputs=x)(x))


def test_word_errors():
    assert word_errors("He was, not a man.", "he was not an ill man") == 2
    assert word_errors("", "two words") == 2 and word_errors("one two", "") == 2


@pytest.fixture
def gemma(monkeypatch):
    made = perturbed(FAMILIES["gemma"])
    monkeypatch.setattr(real_gains, "language_model", lambda name: (made, None))
    monkeypatch.setattr(real_gains, "blocks", lambda tokenizer, part, count, length: IDS)
    return made


def test_scores_of_single_tokens_need_no_mask_and_no_rotation(gemma, monkeypatch):
    found, projected = pd.DataFrame(real_gains.scores("gemma")), {}
    assert (found.valid < found.bound).all()
    monkeypatch.setattr(real_gains, "blocks", lambda tokenizer, part, count, length: IDS[:, :1])
    alone = pd.DataFrame(real_gains.scores("gemma"))
    names = [f"model.layers.{i}.self_attn.{name}_norm" for i in range(3) for name in "qk"]
    with ng.watch(gemma, names, lambda name, x, y: projected.update({name: y})), torch.no_grad():
        gemma(IDS[:, :1])
    pairs = zip(names[::2], names[1::2], strict=True)
    sizes = [(projected[q] * projected[k]).sum(-1).abs().amax((0, 2)) for q, k in pairs]
    expected = torch.cat(sizes) * gemma.model.layers[0].self_attn.scaling
    assert alone.valid.tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    assert (found.valid >= alone.valid - 1e-3).all(), "each text begins with such a token"


def test_sinks_are_what_later_positions_pay(gemma):
    rows = real_gains.sinks("gemma", "valid")
    gemma.set_attn_implementation("eager")
    weights = gemma.model(IDS, output_attentions=True).attentions[1]
    by_hand = sum(float(weights[b, h, t, 0]) for b in range(4) for h in range(2) for t in range(1, 9)) / 64
    assert rows[1]["mean"] == pytest.approx(by_hand, rel=1e-4)
