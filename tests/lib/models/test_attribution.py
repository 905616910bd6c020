"""What parts do to a logit: against hooks written for each architecture, in float64."""

from typing import NamedTuple

import normgeom as ng
import pytest
import torch
from normgeom.models.attribution import effects
from normgeom.models.flow import double_throughout
from normgeom.models.watch import hooked
from surgery_models import uneven
from tiny_models import tiny, token_ids
from torch import nn
from transformers import GPT2Config

IDS = token_ids(3, 7)
ANSWER, AGAINST = [9, 4, 30], 12


class Names(NamedTuple):
    """What an architecture calls its embeddings, blocks, last norm, and the maps that attention and MLP end in.

    Attributes:
        ends: what attention and MLP add to the stream, where it is not what these maps put out.
    """

    embeddings: tuple[str, ...]
    blocks: str
    final: str
    attention: str
    mlp: str
    ends: tuple[str, ...] = ()


def in_stack(stack: str, embeddings: str, *rest: str) -> Names:
    blocks, final, *others = rest
    return Names(
        tuple(f"{stack}.{name}" for name in embeddings.split()), f"{stack}.{blocks}", f"{stack}.{final}", *others
    )


LLAMA = in_stack("model", "embed_tokens", "layers", "norm", "self_attn.o_proj", "mlp.down_proj")
MODELS = {
    "gpt2": in_stack("transformer", "wte wpe", "h", "ln_f", "attn.c_proj", "mlp.c_proj"),
    "llama": LLAMA,
    "gemma3": LLAMA._replace(ends=("post_attention_layernorm", "post_feedforward_layernorm")),
    "stablelm": LLAMA,
    "gpt_neox": in_stack("gpt_neox", "embed_in", "layers", "final_layer_norm", "attention.dense", "mlp.dense_4h_to_h"),
    "opt": in_stack(
        "model.decoder", "embed_tokens embed_positions", "layers", "final_layer_norm", "self_attn.out_proj", "fc2"
    ),
}
FIRST = (torch.arange(IDS.shape[1]) == 0)[:, None]  # which keeps what it has
REPLACED = {
    "zero": lambda y: y * FIRST,
    "mean": lambda y: torch.where(FIRST, y, y[:, 1:].mean((0, 1))),
    "resample": lambda y: torch.where(FIRST, y, y[[1, 2, 0]]),
}


class Truth:
    """A run of a model by hooks of this file."""

    def __init__(self, family: str):
        self.family, self.names, self.model = family, MODELS[family], uneven(family)
        self.module = self.model.get_submodule
        self.into, self.out = {}, {}

        def look(name):
            def hook(module, args, kwargs, output):
                if name not in n.embeddings:
                    self.into[name] = args[0].reshape(*IDS.shape, -1)
                self.out[name] = output.reshape(-1, IDS.shape[1], output.shape[-1]).expand(len(IDS), -1, -1).clone()

            return hook

        n = self.names
        seen = [*n.embeddings, n.final]
        seen += [f"{n.blocks}.{i}.{name}" for i in (0, 1) for name in (n.attention, n.mlp, *n.ends)]
        with hooked(after=[(self.module(name), look(name)) for name in seen]):
            self.logits = self.run()
        self.end = self.into[n.final][:, -1]

    def run(self):
        with torch.no_grad():
            return self.asked(self.model(IDS).logits[:, -1])

    def asked(self, logits):
        rows = torch.arange(len(IDS))
        return logits[rows, ANSWER] - logits[rows, AGAINST]

    def read(self, x):
        """The model's own last norm and head."""
        with torch.no_grad():
            return self.asked(self.model.lm_head(self.module(self.names.final)(x)))

    def scale(self, x):
        x = x if self.rms else x - x.mean(-1, keepdim=True)
        norm = self.module(self.names.final)
        eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        return (x.square().mean(-1) + eps).sqrt()

    @property
    def rms(self):
        return self.family in ("llama", "gemma3")

    def parts(self, replaced, by):
        """Name, change of the last vector of the stream, and the hook that replaces it, of each part."""
        n = self.names
        attention, mlp = n.ends or (n.attention, n.mlp)
        for name in n.embeddings:
            yield name.split(".")[-1], *self.whole(name, replaced)
        for i in (0, 1):
            block = f"{n.blocks}.{i}."
            if by == "part":
                yield f"attn {i}", *self.whole(block + attention, replaced)
            else:
                for head in range(4):
                    yield f"head {i}.{head}", *self.of_head(block, head, replaced)
            yield f"mlp {i}", *self.whole(block + mlp, replaced)

    def whole(self, name, replaced):
        out = self.out[name]
        instead = replaced(out)
        after = lambda module, args, kwargs, y: instead.reshape(-1)[: y.numel()].reshape(y.shape)  # noqa: E731
        return (out - instead)[:, -1], dict(after=[(self.module(name), after)])

    def of_head(self, block, head, replaced):
        module, own = self.module(block + self.names.attention), slice(8 * head, 8 * head + 8)
        read = self.into[block + self.names.attention]
        instead = read.clone()
        instead[..., own] = replaced(read[..., own])
        matrix = module.weight if isinstance(module, nn.Linear) else module.weight.T
        change = (read - instead)[:, -1] @ matrix.T
        if self.names.ends:  # by the scale of the run
            norm = self.module(block + self.names.ends[0])
            x = self.into[block + self.names.ends[0]][:, -1]
            change = change * (1 + norm.weight) / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        before = lambda module, args, kwargs: ((instead.reshape(args[0].shape), *args[1:]), kwargs)  # noqa: E731
        return change.detach(), dict(before=[(module, before)])


@pytest.mark.parametrize("family", MODELS)
def test_effects_are_those_of_hooks(family):
    with double_throughout():
        truth = Truth(family)
        for how, replaced in REPLACED.items():
            for by in ("part", "head"):
                names, found = effects(truth.model, IDS, ANSWER, AGAINST, how, by)
                expected = [*truth.parts(replaced, by)]
                assert names == [name for name, *_ in expected] + ["baseline"]
                assert (found[0].sum(0) - truth.logits).abs().max() < 1e-11, "credits add up to the logits"
                for (name, change, hooks), row in zip(expected, found.transpose(0, 1), strict=False):
                    held, slope = linear(truth, change)
                    with hooked(**hooks):
                        total = truth.logits - truth.run()
                    rows = torch.stack([held, truth.logits - truth.read(truth.end - change), total, slope])
                    bound = 1e-11 * max(1, float(truth.logits.abs().max()))
                    assert (row - rows).abs().max() < bound, f"{how}, {by}: {name}"


def linear(truth, change):
    """What a change of the stream does at a fixed scale, and its derivative of ln s."""
    matrix, norm = truth.model.lm_head.weight, truth.module(truth.names.final)
    gain = norm.weight + (truth.family == "gemma3")
    centred = change if truth.rms else change - change.mean(-1, keepdim=True)
    held = gain * centred / truth.scale(truth.end)[:, None] * (matrix[ANSWER] - matrix[AGAINST])
    slope = torch.func.jvp(lambda x: truth.scale(x).log(), (truth.end,), (change,))[1]
    return held.sum(-1).detach(), slope


def test_a_table_has_the_means_over_sequences_and_the_model_stays():
    model = tiny("gpt2")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    model.train()
    table = ng.attribute(model, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, 5, by="head")
    assert list(table.columns) == ["part", "credit", "direct", "total", "kappa"]
    names, values = effects(model, IDS, 5, by="head")
    assert list(table.part) == names
    assert torch.equal(torch.tensor(table.iloc[:-1, 1:].values).T, values[:, :-1].mean(-1))
    assert table.iloc[-1, 2:].isna().all()
    assert model.training and all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("family", ["cohere", "bloom", "olmo2", "falcon", "phi"])
def test_credits_add_up(family):
    """A factor on the logits, a norm after the embedding, norms only after branches, additions in place, biases."""
    model = uneven(family)
    with double_throughout():
        names, found = effects(model, IDS, 5, 6)
        logits = model(IDS).logits[:, -1]
    assert len(names) == 6 and (found[0].sum(0) - (logits[:, 5] - logits[:, 6])).abs().max() < 1e-10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    expected = ng.attribute(tiny("llama"), IDS, 5, 6)
    found = ng.attribute(tiny("llama").to(dtype), IDS, 5, 6)
    assert (found.credit - expected.credit).abs().max() < 0.05 * expected.credit.abs().max()


def mixed(**changes):
    return dict({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, **changes)


@pytest.mark.parametrize(
    ("family", "given", "said"),
    [
        ("gpt2", dict(answer=64), r"^answer: expected a token id from 0 to 63, or 3 of them, .* got 64$"),
        ("gpt2", dict(answer=5, against=[1, 2]), r"^against: expected a token id from 0 to 63"),
        ("gpt2", dict(answer=5.0), "^answer: expected a token id"),
        ("gpt2", dict(answer=True), "^answer: expected a token id"),
        ("gpt2", dict(inputs=IDS + 60), "^inputs: expected token ids from 0 to 63, got"),
        ("gpt2", dict(answer=" Paris"), r"^answer: expected a token id .* got ' Paris'$"),
        (
            "gpt2",
            dict(inputs=IDS[0]),
            r"^inputs: expected token ids \(batch, length\) of length 2 or more, got \(7,\)$",
        ),
        (
            "gpt2",
            dict(inputs=mixed(attention_mask=IDS > 10)),
            "^inputs: expected texts without padding",
        ),
        ("gpt2", dict(inputs=IDS[:1], ablate="resample"), "^inputs: expected two sequences or more"),
        (
            "gpt2",
            dict(reference=IDS[:, 1:], ablate="resample"),
            r"^reference: expected the shape of inputs, \(3, 7\), got \(3, 6\)$",
        ),
        ("gpt2", dict(ablate="noise"), "^ablate: expected one of 'mean', 'zero', 'resample', got 'noise'$"),
        ("gpt2", dict(by="neuron"), "^by: expected one of 'part', 'head', got 'neuron'$"),
        ("gemma2", {}, "^model: expected logits that are its unembedding's outputs or a multiple, not capped or cut$"),
        (
            "openai_gpt",
            {},
            r"^model: expected a pre-norm model, and transformer.h.1.ln_1 normalises the stream itself$",
        ),
        (
            "mixtral",
            {},
            r"^model: its stream cannot be followed to model.norm, which reads model.layers.0.mlp\S* otherwise than as",
        ),
    ],
)
def test_refused(family, given, said):
    with pytest.raises(ValueError, match=said):
        ng.attribute(tiny(family), **dict(inputs=IDS, answer=5) | given)


@pytest.mark.parametrize("ablate", ["mean", "resample"])
def test_parts_are_replaced_by_those_of_a_reference(ablate):
    model, written = uneven("llama"), []
    other = IDS.flip(0) if ablate == "resample" else token_ids(5, 9)
    module = model.model.layers[0].mlp.down_proj
    logit = lambda: model(IDS).logits[:, -1, 5]  # noqa: E731
    with torch.no_grad(), double_throughout():
        with hooked(after=[(module, lambda *call: written.append(call[-1]))]):
            model(other)
        instead = written[0] if ablate == "resample" else written[0][:, 1:].mean((0, 1)).expand(*IDS.shape, 32)
        before = logit()
        with hooked(after=[(module, lambda *call: torch.where(FIRST, call[-1], instead))]):
            total = (before - logit()).mean()
        table = ng.attribute(model, IDS, 5, ablate=ablate, reference=other).set_index("part")
    assert table.total["mlp 0"] == pytest.approx(float(total), rel=1e-9)
    assert table.credit.sum() == pytest.approx(float(before.mean()), rel=1e-9)


def test_heads_need_a_number():
    model = tiny("gpt2")
    model.transformer.h[0].attn.num_heads = 5
    with pytest.raises(ValueError, match=r'^model: for by="head" expected a number of heads that divides 32, got 5$'):
        ng.attribute(model, IDS, 5, by="head")


def test_heads_are_counted_where_they_are():
    """The configuration of a decoder may state the heads of an encoder."""
    table = ng.attribute(tiny("gpt2"), IDS, 5, by="head")
    model = tiny("gpt2")
    model.config.n_head = 1
    assert list(ng.attribute(model, IDS, 5, by="head").part) == list(table.part)


def test_heads_are_columns_of_a_weight_and_nothing_more():
    model = tiny("llama")
    model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda module, args, output: 2 * output)
    assert len(ng.attribute(model, IDS, 5)) == 6
    with pytest.raises(ValueError, match=r"expected model.layers.0.self_attn.o_proj to be its weight and bias, and no"):
        ng.attribute(model, IDS, 5, by="head")


def test_a_convolution_has_no_heads():
    table = ng.attribute(tiny("lfm2"), IDS, 5, by="head")
    assert list(table.part)[1] == "conv 0" and "head 1.0" in list(table.part)


class LengthFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.last = nn.Embedding(64, 8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.up, self.head = nn.Linear(8, 8), nn.Linear(8, 64)

    def forward(self, ids):
        x = self.words(ids.T)
        return self.head(self.last(x + self.up(self.norm(x)))).transpose(0, 1)


class Some(LengthFirst):
    """Half of the tokens pass through the branch."""

    def forward(self, ids):
        x = self.words(ids).clone()
        x[:, ::2] = x[:, ::2] + self.up(self.norm(x[:, ::2]))
        return self.head(self.last(x))


class Short(LengthFirst):
    """Long texts leave the branch out."""

    def forward(self, ids):
        x = self.words(ids)
        return self.head(self.last(x + self.up(self.norm(x)) if ids.shape[1] < 12 else x))


@pytest.mark.parametrize(("make", "count"), [(Some, 28), (Short, 0)])
def test_parts_read_all_tokens(make, count):
    said = rf"^model: expected vectors of all 56 tokens of inputs, got {count}$"
    with pytest.raises(ValueError, match=said):
        ng.attribute(make().eval(), token_ids(4, 14), 5)


def test_a_stream_that_moves_between_positions_is_refused():
    """Every vector that the last norm reads is a sum of what modules wrote, but elsewhere."""
    model = tiny("gpt2")
    model.transformer.ln_f.register_forward_pre_hook(lambda module, args: (args[0].roll(1, 1),))
    with pytest.raises(
        ValueError, match=r"^model: its stream cannot be followed to transformer.ln_f, whose input is not"
    ):
        ng.attribute(model, IDS, 5)


def added_to_logits():
    model = tiny("gpt2")
    model.register_forward_hook(
        lambda module, args, output: setattr(output, "logits", output.logits + torch.arange(64))
    )
    return model


@pytest.mark.parametrize("make", [added_to_logits, LengthFirst])
def test_logits_that_parts_do_not_add_up_to_are_refused(make):
    for ids in (IDS, token_ids(7, 7)):
        with pytest.raises(ValueError, match=r"^model: expected logits that"):
            ng.attribute(make().double().eval(), ids, 5, ablate="zero")


class Fused(LengthFirst):
    """One map reads attention, which looks back, and a branch that does not; the head reads a quarter of a norm."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8))])
        self.config = GPT2Config(n_head=2)

    def forward(self, ids):
        x = self.words(ids)
        n = self.norm(x)
        x = x + self.layers[0](torch.cat([n[..., :4].cumsum(1), self.up(n)[..., 4:].relu()], -1))
        logits = self.head(self.last(x) / 4)
        return {"loss": logits[:, ids.shape[1] - 1].logsumexp(-1), "logits": logits.view(*ids.shape, -1)}


def test_a_map_that_reads_attention_and_more_has_no_heads():
    model = Fused().double().eval()
    table = ng.attribute(model, IDS, ANSWER, AGAINST, by="head")
    assert list(table.part) == ["words", "block 0", "baseline"]
    logits = model(IDS)["logits"][:, -1]
    assert abs(table.credit.sum() - (logits[range(3), ANSWER] - logits[:, AGAINST]).mean()) < 1e-12


class Twice(LengthFirst):
    """The embedding also makes what is added to every position."""

    def forward(self, ids):
        x = self.words(ids) + self.words(ids[:, :1])
        return self.head(self.last(x + self.up(self.norm(x))))


def test_a_module_that_writes_twice_is_refused():
    with pytest.raises(ValueError, match=r"^model: expected modules that write to the stream once, words ran twice$"):
        ng.attribute(Twice().eval(), IDS, 5)
