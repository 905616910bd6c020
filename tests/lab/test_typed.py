"""The page's network in torch: each change against the same change made in the weights, or by hand."""

import copy

import normgeom as ng
import pytest
import torch
from normgeom_lab.common import typed as module
from normgeom_lab.common.stream import writers
from normgeom_lab.common.typed import recorded_twins, type_here, typed
from normgeom_lab.without_mean import without_subtraction

TEXT = b"The function returns a list of the names that are defined in the module."


@pytest.fixture(scope="module")
def networks():
    made = {name: model.double() for name, model in recorded_twins().items()}
    return made | {"converted": ng.to_rms_norm(copy.deepcopy(made["layer"]))}


@pytest.fixture
def ids():
    return torch.tensor(list(TEXT))


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids[None]).logits[0]


def sites_of(model):
    return [site.name for site in ng.find_norms(model)]


def agree(got, expected, atol=1e-11):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["layer", "rms", "converted"])
def test_nothing_changed_is_the_network_itself(networks, ids, name):
    """And both have learnt to read such a text: a guess is 5.5 nats a byte, and the counts of bytes are 3.2."""
    found = typed(networks[name], ids)
    agree(found.logits, logits_of(networks[name], ids))
    assert list(found.before) == list(found.after) == list(found.scales) == sites_of(networks[name])
    assert torch.nn.functional.cross_entropy(found.logits[:-1], ids[1:]) < 2.2


def shifted(model, c):
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.transformer.wpe.weight += c
    return model


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_a_shift_is_one_of_the_positions_table_and_moves_rms_norm_alone(networks, ids, name):
    got = typed(networks[name], ids, shift=3.7).logits
    agree(got, logits_of(shifted(networks[name], 3.7), ids))
    moved = (got - logits_of(networks[name], ids)).abs().max()
    assert moved < 1e-10 if name == "layer" else moved > 0.1


def test_leaving_the_subtraction_out_is_the_surgery(networks, ids):
    model = networks["layer"]
    for names in (sites_of(model)[2:3], sites_of(model)):
        expected = logits_of(without_subtraction(shifted(model, 1.5), names), ids)
        agree(typed(model, ids, 1.5, names).logits, expected, 1e-10)


def test_a_removed_part_writes_nothing(networks, ids):
    for name in ("wte", "wpe", "a1", "m4"):
        model = copy.deepcopy(networks["layer"])
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # keeps reading
        for parameter in writers(model)[name].parameters():
            torch.nn.init.zeros_(parameter)
        agree(typed(networks["layer"], ids, removed=name).logits, logits_of(model, ids))


def test_held_scales_divide(networks, ids):
    """By hand at each norm; and one's own scales change nothing."""
    model = networks["layer"]
    plain = typed(model, ids)
    agree(typed(model, ids, held=plain.scales).logits, plain.logits)
    found = typed(model, ids, held=plain.scales, removed="m2", shift=2.0)
    for site in ng.find_norms(model):
        x = found.before[site.name]
        by_hand = site.weight * (x - x.mean(-1, keepdim=True)) / plain.scales[site.name][:, None] + site.bias
        agree(found.after[site.name], by_hand)
    free = typed(model, ids, removed="m2", shift=2.0)
    assert (free.logits - found.logits).abs().max() > 1e-3, "the scale reacts to what is removed"


@pytest.fixture
def shown(monkeypatch):
    """What a call displays, as a page and as words."""
    bundles = []
    monkeypatch.setattr(module, "display", lambda data, raw: raw and bundles.append(data))

    def show(*args, **changes):
        type_here(*args, **changes)
        return bundles[-1]["text/html"], bundles[-1]["text/plain"]

    return show


def test_what_is_shown_follows_the_arguments(shown):
    page, words = shown("Return")
    assert 'data-text="Return"' in page and 'data-controls="model shift uncentred removed held"' in page
    assert words.startswith("A network. At position 6, angle to (1, …, 1) in degrees") and " 0 nats per byte" in words
    for model, shift, least, most in (("layer", 10, 0, 1e-6), ("rms", 10, 0.1, 100), ("converted", 0, 0, 1e-6)):
        kl = float(shown("Return", shift=shift, model=model)[1].split("unchanged network: ")[1].split()[0])
        assert least <= kl <= most, "LayerNorm and conversion change nothing, and RMSNorm subtracts no mean"
    assert "At position 128, length, before and after" in shown("é" * 500, quantity="length")[1]
    assert shown("Return", removed="a1")[1] != shown("Return", removed="a1", held=True)[1] != words


def test_a_host_asks_for_known_controls_and_a_text(shown):
    page, _ = shown('a "quoted" <text>', ["shift"])
    assert 'data-text="a &quot;quoted&quot; &lt;text&gt;"' in page and 'data-controls="shift"' in page
