"""Surgery on models as people write them, which do more than maps and norms: exact, or refused for the true reason."""

from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace

import normgeom as ng
import pytest
import torch
from surgery_models import IDS, Untouched, apart, draw_unevenly
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.utils import parametrizations, prune
from transformers import PretrainedConfig


class Plain(nn.Module):
    """Embedding, one pre-norm branch, a last norm and a head."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32)
        self.set_up()
        draw_unevenly(self)

    def set_up(self):
        """What a subclass adds."""

    def embed(self, ids):
        return self.words(ids)

    def branch(self, n):
        return self.down(self.up(n).relu())

    def stream(self, ids):
        x = self.embed(ids)
        return x + self.branch(self.norm(x))

    def forward(self, ids):
        return self.head(self.last(self.stream(ids)))


class Shortened(Plain):
    def set_up(self):
        self.words = nn.Embedding(64, 32, max_norm=3.0)


class Tasks(nn.Linear):
    """A map with a bias for each task, for those who name one."""

    def __init__(self, *shape):
        super().__init__(*shape)
        self.task = nn.Parameter(torch.ones(3, self.out_features))

    def forward(self, x, task=None):
        y = super().forward(x)
        return y if task is None else y + self.task[task]


class OfTasks(Plain):
    def set_up(self):
        self.down = Tasks(48, 32)


@dataclass
class Answer:
    logits: Tensor
    value: Tensor | None = None


class Beside(Plain):
    """The head reads a norm and what the norm reads."""

    def forward(self, ids):
        x = self.stream(ids)
        return self.head(x + self.last(x))


class Valued(Plain):
    """The mean of the stream is an answer, too."""

    def forward(self, ids):
        x = self.stream(ids)
        return Answer(self.head(self.last(x)), x.mean(-1))


class Packed(Plain):
    def forward(self, ids):
        return Answer(super().forward(ids))


class Chooses(Plain):
    def forward(self, ids):
        return super().forward(ids).argmax(-1)


class Random(Plain):
    def embed(self, ids):
        return nn.functional.dropout(self.words(ids), 0.1, training=True)


class Remembers(Plain):
    def embed(self, ids):
        x = self.words(ids) + getattr(self, "before", 0)
        self.before = 0.1 * x.detach().mean((0, 1))
        return x


class Blind(Plain):
    @torch.no_grad()
    def stream(self, ids):
        return super().stream(ids)


class Wide(Plain):
    """Something else in float64 than in float32."""

    def embed(self, ids):
        x = self.words(ids)
        return x if x.dtype == torch.float64 else x.relu() + torch.arange(32).to(x)


class Cosines(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, nn.functional.normalize(self.weight, dim=-1), self.bias)


class Masked(Plain):
    """A huge logit hides how the others change."""

    def set_up(self):
        self.head = Cosines(32, 64)

    def forward(self, ids):
        return super().forward(ids).index_fill(-1, torch.tensor([3]), torch.finfo(torch.float32).min)


class Scaled(nn.LayerNorm):
    def forward(self, x, scale=1.0):
        return scale * super().forward(x)


class WithNumber(Plain):
    def set_up(self):
        self.last = Scaled(32)

    def forward(self, ids):
        return self.head(self.last(self.stream(ids), 2.0))


class Rounds(torch.autograd.Function):
    """Its derivative says that it changes nothing."""

    @staticmethod
    def forward(_, x):
        return (16 * x).round() / 16

    @staticmethod
    def backward(_, gradient):
        return gradient


class StraightThrough(Plain):
    def branch(self, n):
        return super().branch(Rounds.apply(n))


class Compiled(Plain):
    """Compiled code runs no hooks inside."""

    def set_up(self):
        self.end = torch.compile(nn.Sequential(self.last, self.head), backend="eager")

    def forward(self, ids):
        return self.end(self.stream(ids))


def pruned():
    model = Plain()
    prune.random_unstructured(model.up, "weight", 0.3)
    return model


NO_PLACE = "the example does not use down.task, a parameter of a Tasks"
AGAIN = "computes something else when it runs again: it draws random numbers, or keeps"
NO_GRADIENTS = r"no float64 copy of this Blind runs with gradients \(words runs without them\)"
IN_FLOAT32 = "with its own weights in torch.float32 computes something else when changed, on the example by"
CASES = {  # how it is made, and why folding, centring and converting are refused; None where they are exact
    "an embedding that is shortened": (Shortened, None, *["a run changes words.weight, as max_norm does"] * 2),
    "parameters for those who ask": (OfTasks, *[NO_PLACE] * 3),
    "beside a norm": (Beside, None, *["words writes to the stream is read without a norm, by head"] * 2),
    "an answer beside the logits": (Valued, None, *["words writes to the stream is read without a norm, by the"] * 2),
    "an answer in a dataclass": (Packed, None, None, None),
    "no numbers": (Chooses, *["this Chooses returns no finite numbers"] * 3),
    "random": (Random, AGAIN, *["no norm reads a sum of what embeddings and linear maps write"] * 2),
    "a memory of the call before": (Remembers, AGAIN, *["norm reads a sum with a part that comes from no map"] * 2),
    "without gradients": (Blind, *[NO_GRADIENTS] * 3),
    "another branch in float64": (lambda: Wide().float(), None, *[IN_FLOAT32] * 2),
    "a mask on the logits": (
        Masked,
        "with random weights in torch.float64 computes something else",
        None,
        "with random weights",
    ),
    "a norm with an argument": (WithNumber, None, *["read without a norm, by head"] * 2),
    "rounded, with a derivative": (StraightThrough, None, None, "the norm norm is read by up; only linear maps"),
    "a compiled part": (Compiled, None, None, None),
    "a pruned map": (pruned, "does more than its", None, "does more than its"),
}


def numbers(model):
    with torch.no_grad():
        found = model(torch.arange(64).reshape(4, 16))
    return getattr(found, "logits", found)


@pytest.mark.filterwarnings("ignore:norms of the stream keep", "ignore:seen and not measured")
@pytest.mark.parametrize("which", range(3), ids=("fold", "center", "convert"))
@pytest.mark.parametrize("case", CASES)
def test_exact_or_refused_for_the_true_reason(case, which):
    make, *reasons = CASES[case]
    model, surgery = make(), (ng.fold_norms, ng.center_writers, ng.to_rms_norm)[which]
    model.eval()
    if reasons[which] is None:
        before = numbers(model)
        bound = 1e-10 if before.dtype == torch.float64 else 1e-5 * float(before.abs().max())
        assert apart(numbers(surgery(model, IDS)), before) < bound
    else:
        with Untouched(model), pytest.raises(ValueError, match=f"^model: .*{reasons[which]}"):
            surgery(model, IDS)


# what only other inputs than the example show, or only the model and no copy of it

FEW, ALL = torch.arange(12).reshape(2, 6), torch.arange(64).reshape(4, 16)
FOLD, CENTER, CONVERT = ng.fold_norms, ng.center_writers, ng.to_rms_norm


def altered(**methods):
    """A plain model of which one thing is another."""
    return type("Altered", (Plain,), methods)


def of_images(self, ids):
    image = torch.linspace(-1, 1, 5 * ids.numel(), dtype=self.head.weight.dtype).reshape(-1, 5)
    return self.words(ids).masked_scatter((ids == 63)[..., None], self.see(image))


def experts(self):
    self.ups, self.downs = (nn.ModuleList(nn.Linear(*shape) for _ in range(16)) for shape in ((32, 48), (48, 32)))
    del self.up, self.down


def by_experts(self, ids):
    x = self.words(ids)
    n, out = self.norm(x), torch.zeros_like(x)
    for e, (up, down) in enumerate(zip(self.ups, self.downs, strict=True)):
        out[ids % 16 == e] = down(up(n[ids % 16 == e]).relu())
    return x + out


def with_closure():
    """A function holds the norm: that of a copy runs the original's."""

    def stream(self, ids):
        x = Plain.stream(self, ids)
        return x + self.more(self.pre(x))

    model = altered(set_up=lambda self: setattr(self, "more", nn.Linear(32, 32)), stream=stream)()
    model.pre = lambda x: model.norm(x)
    return model


class Object:
    def __init__(self, norm):
        self.norm = norm

    def __call__(self, x):
        return self.norm(x)


def replaced_forward():
    """A function in place of the method: that of a copy runs the original's modules."""
    model = altered()()
    model.forward = lambda ids: Plain.forward(model, ids)
    return model


def infinite():
    """Finite for a negative bias only."""
    model = altered(branch=lambda self, n: Plain.branch(self, n) * (-self.norm.bias).sqrt())()
    model.norm.bias.data.fill_(-1)
    return model


def in_inference_mode():
    with torch.inference_mode():
        return Plain()


class Takes(nn.LayerNorm):
    def forward(self, x, residual=None):
        return super().forward(x)


class Padded(Plain):
    """Padding is zeroed behind a norm, and goes on in what follows."""

    def forward(self, ids, attention_mask=None):
        x = self.words(ids)
        n = self.norm(x) if attention_mask is None else self.norm(x) * attention_mask[..., None]
        return self.head(self.last(x + self.down(self.up(n).relu().cumsum(1) / 16)))


def floored():
    model = altered(embed=lambda self, ids: self.words(ids).clamp(min=-20))()
    model.words.weight.data[40] -= 30
    return model


def clipped():
    model = altered(branch=lambda self, n: Plain.branch(self, n.clamp(-8, 8)))()
    model.norm.weight.data = 2 + 0.1 * model.norm.weight.data
    model.words.weight.data.normal_()[40, 3] += 90
    return model


image = altered(set_up=lambda self: setattr(self, "see", nn.Linear(5, 32)), embed=of_images)
token = altered(
    set_up=lambda self: setattr(self, "token", nn.Parameter(torch.zeros(32))),
    embed=lambda self, ids: torch.where((ids == 63)[..., None], self.token, self.words(ids)),
)
added = altered(
    set_up=lambda self: setattr(self, "added", nn.Embedding(4, 32)),
    embed=lambda self, ids: torch.where(
        (ids >= 60)[..., None], self.added((ids - 60).clamp(min=0)), self.words(ids.clamp(max=59))
    ),
)
mixed = altered(set_up=experts, stream=by_experts)
in_object = altered(
    set_up=lambda self: setattr(self, "object", Object(self.norm)),
    stream=lambda self, ids: (x := self.words(ids)) + self.branch(self.object(x)),
)
with_none = altered(
    set_up=lambda self: setattr(self, "norm", Takes(32)),
    stream=lambda self, ids: (x := self.words(ids)) + self.branch(self.norm(x, None)),
)
by_name = altered(stream=lambda self, ids: (x := self.words(ids)) + self.branch(self.norm(input=x)))
long = altered(embed=lambda self, ids: self.words(ids) + (torch.arange(32).double() if len(ids) > 8 else 0))
grouped = altered(
    set_up=lambda self: setattr(self, "deep", nn.Conv1d(32, 32, 1, groups=32)),
    branch=lambda self, n: self.deep(Plain.branch(self, n).mT).mT,
)
transposed = altered(
    set_up=lambda self: setattr(self, "deep", nn.ConvTranspose1d(32, 32, 1)),
    branch=lambda self, n: self.deep(Plain.branch(self, n).mT).mT,
)
configured = altered(set_up=lambda self: setattr(self, "config", PretrainedConfig(tie_word_embeddings=True)))


def on_buffers():
    """A closure, of which no copy runs its own norm, is found last, when the model itself was changed."""
    model = with_closure()
    for linear in (model.up, model.down, model.more):
        weight = linear.weight.data
        del linear.weight
        linear.register_buffer("weight", weight)
    return model


class AsItself(nn.Embedding):
    """A table so large that copies share it."""

    def __deepcopy__(self, memo):
        return self


def computed():
    """Two weights that are made anew whenever they are asked for."""
    model = altered(set_up=lambda self: setattr(self, "words", parametrizations.weight_norm(nn.Embedding(64, 32))))()
    parametrizations.weight_norm(model.down)
    return model


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Padded()

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def scripted():
    model = altered()()
    model.down = torch.jit.script(model.down)
    return model


with_law = altered(
    forward=lambda self, ids: SimpleNamespace(
        logits=self.head(self.last(x := self.stream(ids))), law=Normal(x.mean(-1), 1.0)
    )
)
nested = altered(forward=lambda self, ids: Answer(self.head(n := self.last(self.stream(ids))), Answer(n)))
spectrum = altered(
    forward=lambda self, ids: SimpleNamespace(
        logits=self.head(n := self.last(self.stream(ids))), spectrum=torch.fft.fft(n)
    )
)
attention = altered(
    set_up=lambda self: setattr(self, "att", nn.MultiheadAttention(32, 4, bias=False, batch_first=True)),
    branch=lambda self, n: self.att(n, n, n)[0] + Plain.branch(self, n),
)
as_itself = altered(set_up=lambda self: setattr(self, "words", AsItself(64, 32)))
of_dict = altered(set_up=lambda self: setattr(self, "config", dict(tied=False)))
with_list = altered(set_up=lambda self: setattr(self.up, "relu", type("Loss", (nn.Module,), dict(weight=[1, 2]))()))
with_index = altered(
    set_up=lambda self: setattr(self, "first", nn.Parameter(torch.tensor(0), requires_grad=False)),
    embed=lambda self, ids: self.words(ids) + self.words(self.first),
)
short = altered(embed=lambda self, ids: self.words(ids[:, : 6 if ids.shape[1] != 12 else 1 / 0]))
READ_BY_CALLER = "the norm last is read by the caller"
ALONG_0 = "on the example twice in a row along axis 0 by"
SILENT = {  # how it is made, by which surgery, on what example, and why it is refused; None where it is exact
    "places for images": (image, CONVERT, FEW, "the output of see has no effect on the example"),
    "a token that is not there": (token, CONVERT, FEW, "the example does not use token, a parameter of a Altered"),
    "added tokens": (added, CENTER, FEW, "the output of added has no effect on the example"),
    "added tokens, folded": (added, FOLD, FEW, None),
    "experts without a row": (mixed, FOLD, FEW, "the example does not use ups.12.weight, a parameter of a Linear"),
    "a bound from below": (floored, CENTER, FEW, "when a number is added to all entries of its stream: the mean matt"),
    "a clip behind a norm": (clipped, FOLD, FEW, "when norms return larger vectors and their readers shrink them"),
    "a norm in a function": (with_closure, FOLD, FEW, "with its own weights .* holds one of them in a function"),
    "a norm in an object": (in_object, CONVERT, FEW, "still runs a LayerNorm that was replaced, which it holds in"),
    "made in inference mode": (in_inference_mode, FOLD, FEW, "words.weight was made in torch.inference_mode"),
    "a norm with a None": (with_none, CONVERT, FEW, r"does not run once it is changed \(RMSNorm.forward.. takes 2"),
    "a norm that takes a name": (by_name, CONVERT, FEW, "does not run once it is changed .*argument 'input'"),
    "long texts, one": (long, CONVERT, torch.arange(6), ALONG_0),
    "long texts, length first": (long, CONVERT, torch.arange(12).reshape(6, 2), ALONG_0),
    "a convolution in groups": (grouped, CONVERT, FEW, "deep, a Conv1d of 32 groups, writes what no change of it"),
    "a transposed convolution": (transposed, CONVERT, FEW, "deep, a ConvTranspose1d of 1 groups, writes what no"),
    "nothing finite with other weights": (infinite, FOLD, FEW, "returns no finite numbers, or none with random"),
    "a forward that is replaced": (replaced_forward, FOLD, FEW, "a copy of this Altered runs no LayerNorm or RMSNorm"),
    "a configuration of another kind": (configured, FOLD, FEW, None),
    "padding is zeroed": (Padded, FOLD, FEW, "on the example with padding by"),
    "padding is zeroed in a wrapper": (Wrapped, FOLD, FEW, "on the example with padding by"),
    "a distribution in an object": (with_law, CENTER, FEW, "words writes to the stream is read without a norm, by the"),
    "an answer in an answer": (nested, CONVERT, FEW, READ_BY_CALLER),
    "complex numbers": (spectrum, CONVERT, FEW, READ_BY_CALLER),
    "attention that gets biases": (attention, FOLD, FEW, None),
    "weights in buffers": (on_buffers, FOLD, FEW, "with its own weights .* holds one of them in a function"),
    "copied as itself": (as_itself, FOLD, FEW, "expected one that can be copied, but its copy has some of its"),
    "a configuration in a dict": (of_dict, FOLD, FEW, None),
    "a weight that is computed": (computed, FOLD, FEW, None),
    "a weight that is a list": (with_list, CONVERT, FEW, None),
    "an index that is a parameter": (with_index, CONVERT, FEW, None),
    "a scripted map": (scripted, CENTER, FEW, "last reads down.weight otherwise than as a summand"),
    "twice the example is too long": (short, FOLD, FEW, None),
}


@pytest.mark.filterwarnings("ignore:norms of the stream keep", "ignore:.torch.jit")
@pytest.mark.parametrize("case", SILENT)
def test_never_something_else_in_silence(case):
    make, surgery, example, reason = SILENT[case]
    model = make().eval()
    before = numbers(model)
    if reason is None:
        assert apart(numbers(surgery(model, example)), before) < 1e-10
    else:
        with Untouched(model), pytest.raises(ValueError, match=f"^model: .*{reason}"):
            surgery(model, example)
    assert apart(numbers(model), before) < 1e-10


def test_a_model_that_does_not_run_in_its_own_dtype_is_not_changed():
    model = altered(embed=lambda self, ids: self.words(ids)[:: 1 if self.words.weight.dtype == torch.float64 else 0])()
    with Untouched(model.float()), pytest.raises(ValueError, match="slice step cannot be zero"):
        ng.fold_norms(model, FEW)


def test_where_another_device_is_the_default():
    model = altered()()
    before = numbers(model)
    with torch.device("meta"):
        assert len(ng.find_norms(model, FEW)) == 2
        ng.fold_norms(model, FEW)
    assert apart(numbers(model), before) < 1e-10


@lru_cache
def table(length):
    return torch.outer(torch.arange(length).float(), torch.ones(32)).cos()


def test_a_table_that_is_kept_outside_of_the_model_is_not_made_by_a_float64_copy():
    model = altered(embed=lambda self, ids: self.words(ids) * table(ids.shape[1]))().float()
    ng.fold_norms(model, FEW)
    assert all(model(ALL[:, :length]).dtype == torch.float32 for length in (3, 6, 7, 12))


def test_a_first_norm_that_reads_one_map_of_floats_is_converted_too():
    model = altered(set_up=lambda self: setattr(self, "words", nn.Linear(3, 32)))()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    before = model(x)
    assert apart(ng.to_rms_norm(model, x)(x), before) < 1e-10
    assert type(model.norm) is type(model.last) is ng.RMSNorm
