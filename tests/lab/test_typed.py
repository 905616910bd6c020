"""The page's network in torch: each change against the same change made in the weights, or by hand."""

import copy

import normgeom as ng
import pytest
import torch
from normgeom_lab.common import typed as module
from normgeom_lab.common.parts import writers
from normgeom_lab.common.typed import CONTROLS, recorded_twins, type_here, typed
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


@pytest.mark.parametrize("name", ["layer", "rms", "converted"])
def test_nothing_changed_is_the_network_itself(networks, ids, name):
    found = typed(networks[name], ids)
    torch.testing.assert_close(found.logits, logits_of(networks[name], ids), rtol=0, atol=1e-11)
    assert list(found.before) == list(found.after) == list(found.scales) == sites_of(networks[name])


def test_both_have_learnt_to_read(networks, ids):
    """Of a text of the kind that they were trained on; a guess is 5.5 nats a byte, and the counts of bytes are 3.2."""
    for name in ("layer", "rms"):
        loss = torch.nn.functional.cross_entropy(logits_of(networks[name], ids)[:-1], ids[1:])
        assert loss < 2.2, f"{name}: {loss:.2f} nats a byte"


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_a_shift_is_one_of_the_positions_table(networks, ids, name):
    model = copy.deepcopy(networks[name])
    with torch.no_grad():
        model.transformer.wpe.weight += 3.7
    torch.testing.assert_close(typed(networks[name], ids, shift=3.7).logits, logits_of(model, ids), rtol=0, atol=1e-11)


def test_a_shift_moves_the_twin_with_rms_norm_alone(networks, ids):
    moved = {
        name: (typed(model, ids, shift=5.0).logits - typed(model, ids).logits).abs().max()
        for name, model in networks.items()
    }
    assert moved["layer"] < 1e-10 and moved["rms"] > 0.1 and moved["converted"] > 0.1


def test_leaving_the_subtraction_out_is_the_surgery(networks, ids):
    model = networks["layer"]
    for names in (sites_of(model)[2:3], sites_of(model)):
        torch.testing.assert_close(
            typed(model, ids, 1.5, names).logits,
            logits_of(without_subtraction(_shifted(model, 1.5), names), ids),
            rtol=0,
            atol=1e-10,
        )


def _shifted(model, c):
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.transformer.wpe.weight += c
    return model


def test_a_removed_part_writes_nothing(networks, ids):
    for name in ("wte", "wpe", "a1", "m4"):
        model = copy.deepcopy(networks["layer"])
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # keeps reading
        for parameter in writers(model)[name].parameters():
            torch.nn.init.zeros_(parameter)
        got = typed(networks["layer"], ids, removed=name).logits
        torch.testing.assert_close(got, logits_of(model, ids), rtol=0, atol=1e-11, msg=name)


def test_held_scales_divide(networks, ids):
    """By hand at each norm; and one's own scales change nothing."""
    model = networks["layer"]
    plain = typed(model, ids)
    torch.testing.assert_close(typed(model, ids, held=plain.scales).logits, plain.logits, rtol=0, atol=1e-12)
    found = typed(model, ids, held=plain.scales, removed="m2", shift=2.0)
    for site in ng.find_norms(model):
        x = found.before[site.name]
        by_hand = site.weight * (x - x.mean(-1, keepdim=True)) / plain.scales[site.name][:, None] + site.bias
        torch.testing.assert_close(found.after[site.name], by_hand, rtol=0, atol=1e-12)
    free = typed(model, ids, removed="m2", shift=2.0)
    assert (free.logits - found.logits).abs().max() > 1e-3, "the scale reacts to what is removed"


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, and the live view."""
    seen = []
    monkeypatch.setattr(module, "show_live", lambda view, page, words: seen.append((view, page, words)))
    return seen


def test_the_live_view_draws_what_is_chosen(shown):
    type_here("Return", CONTROLS)
    [(view, page, words)] = shown
    assert 'data-text="Return"' in page and 'data-controls="model shift uncentred removed held"' in page
    assert words.startswith("A network. At position 6, angle to (1, …, 1) in degrees")
    *controls, picture = view.children
    named = {control.description: control for control in controls}
    assert "0 nats a byte" in picture.value
    named["add"].value = 10.0
    shifted = picture.value
    assert "e-" in shifted.split("unchanged network: ")[1][:12], "the gauge: a rounding error"
    named["network"].value = "rms"
    assert picture.value != shifted
    named["text"].value = ""
    assert picture.value.startswith("<p>Type something")
    named["text"].value = "é" * 500
    assert "At position 128" in picture.value


def test_a_host_asks_for_known_controls_and_a_text(shown):
    type_here('a "quoted" <text>', ["shift"])
    assert 'data-text="a &quot;quoted&quot; &lt;text&gt;"' in shown[0][1] and 'data-controls="shift"' in shown[0][1]
