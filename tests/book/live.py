"""What the pages' scripts compute, and what torch computes in their place, on drawn texts and settings."""

import copy
from dataclasses import dataclass, field
from random import Random

import normgeom as ng
import torch
from normgeom_lab.common.stream import writers
from normgeom_lab.common.typed import recorded_twins, typed
from press.live import networks

# Names of the script's parts, and of the library's.
PARTS = {"tokens": "wte", "positions": "wpe"}
PARTS |= {f"h.{b}.{part}": f"{letter}{b + 1}" for b in range(4) for part, letter in (("attn", "a"), ("mlp", "m"))}
NORMS = [*(f"h.{b}.ln_{k}" for b in range(4) for k in (1, 2)), "ln_f"]
POSITIONS = 4  # of a text, that are compared: the first, the last, and two between
COMPUTE = """([cases, positions]) => {
  const { layer, rms } = normgeom.saved;
  globalThis.nets ??= { layer: normgeom.unpack(layer), rms: normgeom.unpack(rms) };
  nets.converted ??= normgeom.toRmsNorm(nets.layer);
  return cases.map(({ ids, model, shift, uncentred, held, removed, token, part }) => {
    const network = nets[model];
    const plain = normgeom.forward(network, ids);
    const names = held ? normgeom.sites(network) : [];
    const scales = Object.fromEntries(names.map((name) => [name, plain.sites[name].scales]));
    const changes = { shift, uncentred, held: scales };
    const run = normgeom.forward(network, ids, { ...changes, removed });
    const whole = normgeom.forward(network, ids, changes);
    const { width: d, vocabulary } = network;
    const at = positions[ids.length];
    const apart = normgeom.apart(plain.logits, run.logits, vocabulary);
    const looks = Object.entries(run.sites).map(([name, site]) => [name, at.map((t) => ["in", "out"].map((side) =>
      Object.values(normgeom.look(site[side].subarray(t * d, (t + 1) * d)))))]);
    return {
      logits: at.map((t) => [...run.logits.subarray(t * vocabulary, (t + 1) * vocabulary)]),
      looks: Object.fromEntries(looks),
      effects: Object.values(normgeom.effects(network, whole, part, ids.length - 1, token, changes)),
      apart: [apart.divergence, apart.change],
    };
  });
}"""


@dataclass
class Case:
    """A text as bytes, what is changed, and the part and the next byte whose effects are compared."""

    ids: list[int]
    model: str
    shift: float = 0.0
    uncentred: list[str] = field(default_factory=list)
    held: bool = False
    removed: str | None = None
    part: str = "h.3.mlp"
    token: int = 101


def models():
    """The networks that the page runs, in double precision."""
    made = {name: model.double() for name, model in recorded_twins().items()}
    return made | {"converted": ng.to_rms_norm(copy.deepcopy(made["layer"]))}


def draw(number, seed):
    """So many cases: texts of 1 to 128 bytes of every kind, and zero to five changes each."""
    random = Random(seed)
    for _ in range(number):
        length = random.choice([1, 2, 128, random.randint(3, 60)])
        model = random.choice(["layer", "rms", "converted"])
        yield Case(
            [random.choice([random.randrange(256), random.randrange(97, 123)]) for _ in range(length)],
            model,
            random.choice([0, random.uniform(-20, 20)]),
            random.sample(NORMS, random.choice([0, 1, len(NORMS)])) if model == "layer" else [],
            random.random() < 0.3,
            random.choice([None, *PARTS]),
            random.choice([*PARTS]),
            random.randrange(256),
        )


def positions(length):
    """The positions of a text that are compared."""
    return sorted({round(i * (length - 1) / (POSITIONS - 1)) for i in range(POSITIONS)})


def by_script(page, cases):
    """What the page's script makes of the cases."""
    where = {str(len(case.ids)): positions(len(case.ids)) for case in cases}
    return page.evaluate(COMPUTE, [[vars(case) for case in cases], where])


@torch.no_grad()
def by_torch(made, case):
    """The same by the library, from modules, hooks and formulas of its own."""
    model, ids = made[case.model], torch.tensor(case.ids)
    full = {name: f"transformer.{name}" for name in NORMS}
    plain = typed(model, ids)
    changes = case.shift, [full[name] for name in case.uncentred], plain.scales if case.held else {}
    run = typed(model, ids, *changes, PARTS.get(case.removed))
    at = positions(len(case.ids))
    looks = {
        name: [[_look(side[long][t]) for side in (run.before, run.after)] for t in at] for name, long in full.items()
    }
    p, q = (logits.log_softmax(-1) for logits in (plain.logits, run.logits))
    apart = [float((p.exp() * (p - q)).sum(-1).mean()), float((plain.logits - run.logits).abs().max())]
    return dict(logits=run.logits[at].tolist(), looks=looks, effects=_effects(model, case, ids, changes), apart=apart)


def _look(x):
    one = torch.ones_like(x)
    angle = torch.rad2deg(torch.acos((x @ one / (x.norm() * one.norm())).clamp(-1, 1)))
    return [float(angle), float(x.sum() ** 2 / (x @ x)), float(x.norm()), float(x[x.abs().argmax()])]


def _effects(model, case, ids, changes):
    """Frozen contribution and direct effect of a part on a logit above the mean logit, in the changed network."""
    written = []
    writer = writers(model)[PARTS[case.part]]
    handle = writer.register_forward_hook(lambda module, args, output: written.append(output.flatten(0, -2)[-1]))
    run = typed(model, ids, *changes)
    handle.remove()
    c, x = written[-1], run.before["transformer.ln_f"][-1]  # the last run of all: finding the norms runs the model too
    norm, weight = model.transformer.ln_f, model.lm_head.weight
    gain = 1 if getattr(norm, "weight", None) is None else norm.weight
    centred = case.model == "layer" and "ln_f" not in case.uncentred

    def read(vector, scale):
        return (weight[case.token] - weight.mean(0)) @ (gain * (vector - centred * vector.mean())) / scale

    def own(vector):
        square = (vector - centred * vector.mean()).square().mean()
        return run.scales["transformer.ln_f"][-1] if case.held else (square + model.config.layer_norm_epsilon).sqrt()

    return [float(read(c, own(x))), float(read(x, own(x)) - read(x - c, own(x - c)))]


def farthest(got, expected):
    """The largest difference between two such results, relative to the size of what is compared."""
    pairs = [(got[key], expected[key]) for key in ("logits", "effects", "apart")]
    pairs += [(got["looks"][name], looks) for name, looks in expected["looks"].items()]
    return max(_apart(*(torch.tensor(side, dtype=torch.float64) for side in pair)) for pair in pairs)


def _apart(a, b):
    return float(((a - b).abs() / b.abs().clamp(min=1)).nan_to_num(torch.inf).max()) if b.numel() else 0.0


def script(book):
    """The scripts that compute, with the networks' weights: what a page loads before anything is drawn."""
    return (book.root / "chapters/_live/norms.js").read_text("utf-8") + networks(book)


HELD = """(settings) => settings.map((state) => {
  const { mean, spread, n, y, angle, axes, ends, bias, image, true_image } = normgeom.held(state);
  const legs = ends.map((end) => end.map((v, i) => v - bias[i]));
  const drawn = legs.map((leg) => Math.hypot(...leg)).sort((a, b) => b - a);
  const across = legs.flatMap((u, i) => legs.slice(0, i).map((v) => u.reduce((sum, e, k) => sum + e * v[k], 0)));
  const nine = { image: image.slice(0, 9), true_image: true_image.slice(0, 9) };
  return { mean, spread, angle, n, y, axes, drawn, across, ...nine };
})"""


def draw_held(number, seed):
    """So many settings of a norm to hold: lengths from 1e-3 to 1e3, gains with zeros and signs, any ε of the slider."""
    random = Random(seed)
    for _ in range(number):
        size = 10 ** random.uniform(-3, 3)
        yield dict(
            x=[random.gauss(0, size) + random.choice([0, 3 * size]) for _ in range(3)],
            gain=[random.choice([0, random.uniform(-2, 2), random.uniform(-2, 2)]) for _ in range(3)],
            bias=[random.gauss(0, 1) for _ in range(3)],
            eps=10 ** random.uniform(-6, 0.5),
            on={name: random.random() < 0.7 for name in ("centre", "divide", "gain", "bias")},
        )


def held_by_torch(state):
    """The same by the library: norms, ellipsoid and Jacobian."""
    on = state["on"]
    x, gain, bias = (torch.tensor(state[name], dtype=torch.float64) for name in ("x", "gain", "bias"))
    gain, bias = (gain if on["gain"] else torch.ones_like(gain)), (bias if on["bias"] else torch.zeros_like(bias))
    norm = ng.layer_norm if on["centre"] else ng.rms_norm
    n = norm(x, eps=state["eps"]) if on["divide"] else x - on["centre"] * x.mean()
    found = dict(mean=x.mean(), spread=x.std(correction=0), angle=ng.angle(x, ng.uniform_vector(3).double()))
    found |= dict(n=n, y=gain * n + bias, axes=[], drawn=[], across=[], image=[], true_image=[])
    if on["divide"]:
        t = torch.arange(9).double() * torch.pi / 36
        around = 0.4 * torch.stack([t.cos(), t.sin(), torch.zeros(9)], dim=-1)
        slope = torch.func.jacrev(lambda z: norm(z, gain, bias, state["eps"]))(x)
        axes = ng.Ellipsoid(gain, centered=on["centre"]).semi_axes
        found |= dict(
            axes=axes,
            drawn=axes,
            across=[0.0] * (1 if on["centre"] else 3),
            image=found["y"] + around @ slope.T,
            true_image=norm(x + around, gain, bias, state["eps"]),
        )
    return {name: torch.as_tensor(value).tolist() for name, value in found.items()}


def farthest_held(got, expected):
    """As :func:`farthest`; semi-axes that are zero may be missing in the one and there in the other."""
    errors = []
    for name, value in expected.items():
        a, b = (torch.tensor(side, dtype=torch.float64).flatten() for side in (got[name], value))
        most = max(len(a), len(b)) if name in ("axes", "drawn") else len(b)
        errors.append(_apart(*(torch.nn.functional.pad(side, (0, most - len(side))) for side in (a, b))))
    return max(errors)
