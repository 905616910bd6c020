"""find_norms on modules made for the purpose: what is a norm, what is not, and what it reads off one."""

import normgeom as ng
import pytest
import torch
from norm_checks import close, draw
from tiny_models import Apply
from torch import nn

unmeasured = pytest.mark.filterwarnings("ignore:seen and not measured")
X = draw(2, 5, 8, dtype=torch.float32)


def found(*modules, inputs=X):
    return ng.find_norms(nn.Sequential(nn.Identity(), *modules).eval(), inputs)


def with_gain(norm, gain=None):
    norm.weight.data = draw(len(norm.weight), seed=3, dtype=torch.float32) if gain is None else gain
    return norm


def length(x):
    return x.square().mean(-1, keepdim=True).sqrt()


def other_numbers():
    """A norm whose attributes are numbers like ε that do not act."""
    norm = Apply(lambda x: ng.rms_norm(x, eps=3e-4))
    norm.eps, norm.dropout, norm.scale = 1e-5, 0.1, 3.2e-4
    return norm


class UnitOffset(nn.RMSNorm):
    def forward(self, x):
        return ng.rms_norm(x, self.weight, eps=self.eps, unit_offset=True)


class Parts(nn.Module):
    """A norm in parts, with a place to look at each step, as TransformerLens writes it."""

    def __init__(self):
        super().__init__()
        self.hook_normalized, self.eps = nn.Identity(), 1e-5
        self.weight = nn.Parameter(draw(8, dtype=torch.float32))

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.weight * self.hook_normalized(x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt())


# the norm, its kind, its ε and how far that may be off, and its gain
HALF = (1e-3 / (2**0.5 - 1)) ** 2  # where (σ/(σ + 1e-3))² is a half, it is what halves the square inside the root
NORMS = {
    "LayerNorm": (with_gain(nn.LayerNorm(8, eps=1e-3)), "layer", 1e-3, 0, lambda m: m.weight),
    "RMSNorm": (with_gain(nn.RMSNorm(8, eps=1e-3)), "rms", 1e-3, 0, lambda m: m.weight),
    "ours": (with_gain(ng.LayerNorm(8)), "layer", 1e-5, 0, lambda m: m.weight),
    "unit offset": (with_gain(UnitOffset(8, eps=1e-6)), "rms", 1e-6, 0, lambda m: 1 + m.weight),
    "no gain": (nn.LayerNorm(8, elementwise_affine=False), "layer", 1e-5, 0, None),
    "zeros in the gain": (with_gain(nn.LayerNorm(8), torch.eye(8)[0]), "layer", 1e-5, 0, lambda m: m.weight),
    "in parts": (nn.Sequential(Parts(), nn.Dropout()), "layer", 1e-5, 0, lambda m: m[0].weight),
    "small gain": (with_gain(nn.RMSNorm(8, eps=1e-5), torch.arange(1, 9) * 1e-6), "rms", 1e-5, 0, lambda m: m.weight),
    "tiny ε": (nn.RMSNorm(8, eps=1e-12), "rms", 1e-12, 0, None),
    "large ε": (nn.LayerNorm(8, eps=1.0), "layer", 1.0, 0, None),
    "ε in no attribute": (other_numbers(), "rms", 3e-4, 0.02, None),
    "no ε": (Apply(lambda x: x / length(x)), "rms", 0.0, 0, None),
    "x/‖x‖": (Apply(lambda x: x / x.norm(dim=-1, keepdim=True)), "rms", 0.0, 0, lambda m: torch.full((8,), 8**-0.5)),
    "ε outside": (Apply(lambda x: x / (length(x) + 1e-3)), "rms", HALF, 0.1, None),
}


@pytest.mark.parametrize(("norm", "kind", "eps", "off", "gain"), NORMS.values(), ids=NORMS)
def test_a_norm_is_known_by_what_it_does(norm, kind, eps, off, gain):
    (site,) = found(norm)
    assert (site.kind, site.dim, site.token_axis) == (kind, 8, 1)
    assert site.eps == pytest.approx(eps, rel=off, abs=1e-15), "not the ε that acts?"
    expected = torch.ones(8) if gain is None else gain(norm)
    close(site.weight / expected.abs().max(), expected / expected.abs().max(), 1e-5, "gain", "Not the one that acts?")
    assert site.weight.dtype == site.bias.dtype == torch.float32


def over(*axes):
    return Apply(lambda x: x * torch.rsqrt(x.square().mean(axes, keepdim=True) + 1e-6))


def refusing(x):
    assert x.shape == X.shape
    return 2 * x


class PerHead(nn.Module):
    """A LayerNorm with gains and biases of the given shape."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(draw(*shape, seed=1, dtype=torch.float32))
        self.bias = nn.Parameter(draw(*shape, seed=2, dtype=torch.float32))

    def forward(self, x):
        return self.weight * ng.layer_norm(x) + self.bias


NOT_NORMS = {
    "batch norm": nn.BatchNorm1d(5),
    "softmax": nn.Softmax(-1),
    "tanh": nn.Tanh(),
    "L1": Apply(lambda x: x / x.abs().sum(-1, keepdim=True)),
    "centring": Apply(lambda x: x - x.mean(-1, keepdim=True)),
    "absolute value of a norm": Apply(lambda x: ng.rms_norm(x).abs()),
    # long rows are shortened to one length, as by a norm; short ones pass as they are
    "a bound on the length": Apply(lambda x: x * (3 / x.norm(dim=-1, keepdim=True)).clamp(max=1)),
    "all rows together": over(0, 1, 2),
    "tokens together": over(1, 2),
    "a gain of each position": PerHead(5, 8),
    "a module that refuses the probe": Apply(refusing),
    "a gain of zeros": with_gain(nn.LayerNorm(8), torch.zeros(8)),
}


@unmeasured
@pytest.mark.parametrize("module", NOT_NORMS.values(), ids=NOT_NORMS)
def test_what_is_not_a_norm_is_not_found(module):
    assert [site.name for site in found(module, nn.LayerNorm(8))] == ["2"]


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_a_norm_that_subtracts_a_part_of_the_mean_is_neither(share):
    norm = Apply(lambda x: ng.rms_norm(x - share * x.mean(-1, keepdim=True)))
    assert found(norm, inputs=draw(2, 5, 768, dtype=torch.float32)) == []


@pytest.mark.parametrize("d", [2, 3, 64])
def test_in_few_dimensions_too(d):
    """There random rows are often close to 1: they must be long, not only large."""
    sites = ng.find_norms(nn.LayerNorm(d, eps=1.0), draw(2, 5, d, dtype=torch.float32))
    assert [repr(site) for site in sites] == [f"NormSite('', LayerNorm, dim={d}, eps=1)"]


@pytest.mark.parametrize("heads", [1, 4, 5])
@pytest.mark.parametrize("behind", [True, False], ids=["token, head", "head, token"])
def test_gains_of_each_head(behind, heads):
    x = draw(2, 11, 8 * heads, dtype=torch.float32)
    split = Apply(lambda x: x.unflatten(-1, (heads, 8)) if behind else x.unflatten(-1, (heads, 8)).transpose(1, 2))
    norm = PerHead(heads, 8) if behind else PerHead(heads, 1, 8)
    (site,) = found(split, norm, inputs=x)
    assert site.module is norm and site.token_axis == (1 if behind else 2)
    assert site.weight.shape == ((8,) if heads == 1 else norm.weight.shape)
    got = ng.layer_norm(split(x)) * site.weight + site.bias
    close(got, norm(split(x)), 1e-4, "prediction", "That of the first head? Not to be broadcast?")
    norm.weight.data[:], norm.bias.data[:] = norm.weight.data[0], norm.bias.data[0]
    (site,) = found(split, norm, inputs=x)
    assert site.weight.shape == site.bias.shape == (8,), "one copy a head?"


WHERE = {
    "text, token": (lambda x: x, 1),
    "token, text": (lambda x: x.transpose(0, 1), 0),
    "row": (lambda x: x[0], None),
    "flattened": (lambda x: x.flatten(0, 1), None),
    "flattened, head": (lambda x: x.reshape(-1, 2, 4), None),
    "text, token, head": (lambda x: x.unflatten(-1, (2, 4)), 1),
    "text, head, token": (lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2), 2),
}


@pytest.mark.parametrize(("reshape", "axis"), WHERE.values(), ids=WHERE)
def test_where_the_positions_are(reshape, axis):
    (site,) = found(Apply(reshape), nn.LayerNorm(reshape(X).shape[-1]))
    assert site.token_axis == axis


class Backwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.unused, self.first = nn.LayerNorm(8), nn.LayerNorm(8), nn.RMSNorm(8)

    def forward(self, x):
        return self.last(input=self.first(x) + self.last(x))


class GatedNorm(nn.Module):
    def forward(self, x, gate=None):
        return ng.rms_norm(x) if gate is None else gate * ng.rms_norm(x)


class Gating(nn.Module):
    """A model that hands its norm what ``arguments`` makes of the input."""

    def __init__(self, arguments):
        super().__init__()
        self.norm, self.arguments = GatedNorm(), arguments

    def forward(self, x):
        args, kwargs = self.arguments(x)
        return self.norm(*args, **kwargs)


class ChannelsFirst(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def test_one_warning_counts_what_is_not_measured():
    gating = Gating(lambda x: ((x, x), {}))
    model = nn.Sequential(Backwards(), gating, nn.BatchNorm1d(5), nn.BatchNorm1d(5), ChannelsFirst(5), Backwards())
    with pytest.warns(UserWarning) as warned:
        names = [site.name for site in ng.find_norms(model.eval(), X)]
    assert names == ["0.first", "0.last", "5.first", "5.last"], "in the order of the forward pass, each once"
    assert [str(w.message) for w in warned] == [
        "seen and not measured: 2 LayerNorm, 1 GatedNorm, 2 BatchNorm1d, 1 ChannelsFirst, the first at '0.unused'"
    ]


GATES = {
    "by position": (lambda x: ((x, x), {}), []),
    "all by keyword": (lambda x: ((), {"x": x, "gate": x}), []),
    "a number": (lambda x: ((x, 0.5), {}), [""]),  # which makes the whole a norm, of gain 0.5
    "None": (lambda x: ((x, None), {}), ["norm"]),
}


@unmeasured
@pytest.mark.parametrize(("arguments", "names"), GATES.values(), ids=GATES)
def test_a_norm_with_a_gate_is_found_where_it_gets_none(arguments, names):
    assert [site.name for site in ng.find_norms(Gating(arguments), X)] == names


class Twice(nn.Module):
    """One norm for all tokens and for their mean."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(x), self.norm(x.mean(1))


def test_rows_of_calls_with_other_axes_have_no_positions():
    (site,) = ng.find_norms(Twice(), torch.randn(2, 5, 8))
    assert site.token_axis is None
    table = ng.Survey(Twice(), ["uniform"], example_inputs=X).run([torch.randn(2, 5, 8)], progress=False).table()
    assert table.query("side == 'in'").tokens.tolist() == [0, 12, 12]


@pytest.mark.parametrize("heads", [1, 5])
def test_axes_of_one_length_are_named(heads):
    modules, batch = (nn.Unflatten(-1, (heads, 8)), nn.LayerNorm(8)), 5 if heads == 1 else 2
    with pytest.warns(UserWarning, match=r"^example_inputs: two axes of what '2' reads are as long as the texts"):
        found(*modules, inputs=torch.randn(batch, 5, 8 * heads))


class Untrained(nn.LayerNorm):
    def train(self, mode=True):
        self.training = mode


def test_a_mode_that_returns_nothing():
    assert [site.name for site in found(Untrained(8))] == ["1"]


def test_bad_input():
    with pytest.raises(TypeError, match=r"^example_inputs: none given, and none can be made for a Sequential$"):
        ng.find_norms(nn.Sequential(nn.LayerNorm(8)))
    with pytest.raises(TypeError, match=r"made for a DataParallel; a wrapper's \.module is the model$"):
        ng.find_norms(nn.DataParallel(nn.LayerNorm(8)))
    with pytest.raises(TypeError, match=r"^model: expected a torch\.nn\.Module, got a str$"):
        ng.find_norms("gpt2")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_machine_epsilon_is_that_of_the_dtype_that_the_norm_reads(dtype):
    """``nn.RMSNorm(eps=None)``: rows so small that ε alone decides what becomes of them."""
    norm = nn.RMSNorm(8, dtype=dtype)
    (site,) = ng.find_norms(norm, X.to(dtype))
    small = (X * site.eps**0.5).to(dtype)
    expected = ng.rms_norm(small.double(), eps=site.eps)
    close(norm(small).double(), expected, 0.05, "output", "The ε of another dtype?")


class HeldTwice(nn.Module):
    """A stream whose norm is run from a plain list, which no replacement of a submodule reaches."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 9)
        self.norms = {"all": [self.norm]}

    def forward(self, ids):
        return self.head(self.norms["all"][0](self.embed(ids)))


REPLACED = {
    "to RMSNorm": ng.to_rms_norm,
    "without the mean": lambda model, ids: ng.drop_mean_subtraction(model, example_inputs=ids),
    "frozen": lambda model, ids: ng.freeze_norms(model, [ids]),
    "frozen, as it was found": lambda model, ids: ng.freeze_norms(model, [ids], ng.find_norms(model, ids)),
}


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
def test_a_norm_that_a_plain_list_holds_too_is_not_replaced(replace):
    model, ids = HeldTwice(), torch.arange(9).view(1, 9)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert [site.name for site in ng.find_norms(model, ids)] == ["norm"], "hooks reach it from either place"
    with pytest.raises(
        ValueError, match=r"^model: this HeldTwice still runs a LayerNorm that was replaced, which it holds in a list"
    ):
        replace(model, ids)
    assert type(model.norm) is nn.LayerNorm
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "weights changed"
