"""The program behind the chapter on doing without the mean, on twins of one block."""

import copy

import normgeom as ng
import pytest
import torch
from click.testing import CliRunner
from normgeom.training.twins import save_twin
from normgeom_lab.without_mean import by_shift, by_site, compare, without_subtraction
from transformers import GPT2Config

SIZES = dict(n_layer=1, n_embd=16, n_head=2, vocab_size=256, n_positions=128)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders as ``python -m records training`` leaves them; every parameter is drawn."""
    from records.dropping import RUN

    folder = tmp_path_factory.mktemp("twins")
    models = {}
    for seed in (0, 1):
        config = GPT2Config(**SIZES, use_cache=False, bos_token_id=None, eos_token_id=None)
        generator = torch.Generator().manual_seed(seed)
        for norm, model in zip(("layer", "rms"), ng.twins(config, seed), strict=True):
            for parameter in model.parameters():
                parameter.data += 0.2 + 0.3 * torch.randn(parameter.shape, generator=generator)
            save_twin(model, folder / RUN.format(norm=norm, seed=seed))
            models[norm, seed] = model
    return folder, models


@pytest.fixture
def program(monkeypatch):
    from records import dropping

    monkeypatch.setattr(dropping, "SEEDS", (0, 1))
    monkeypatch.setattr(dropping, "SHIFTS", (0.0, 0.5))
    monkeypatch.setattr(dropping, "HELD_OUT", 512)
    return dropping


def run(program, *options):
    return CliRunner().invoke(program.main, [str(option) for option in options])


def test_twins_come_back_with_their_norms_and_weights(trained, program):
    folder, models = trained
    ids = torch.arange(60).reshape(2, 30)
    for (norm, seed), model in models.items():
        read = program.read_twin(folder, norm, seed)
        assert {site.kind for site in ng.find_norms(read)} == {norm}
        assert not read.training and read.lm_head.weight is read.transformer.wte.weight
        with torch.no_grad():
            assert torch.equal(read(ids).logits, model(ids).logits), f"{norm}, {seed}: other weights"


def test_held_out_text_is_the_end_of_the_corpus(program):
    from normgeom.text.corpora import load_corpus

    ids = torch.cat([batch.flatten() for batch in program.held_out()])
    assert bytes(ids.tolist()) == load_corpus("stdlib").text.encode()[-512:]


def test_what_is_recorded_is_what_the_library_finds(trained, program, tmp_path, monkeypatch):
    folder, models = trained
    monkeypatch.setattr("normgeom.records.FOLDER", tmp_path)
    done = run(program, "--part", "losses", "--models", folder, "--folder", tmp_path)
    assert done.exit_code == 0, done.output
    names = ("ways", "sites", "gauge", "llama")
    tables = {name: ng.recorded(f"dropping-{name}").table for name in names}
    assert sorted(p.stem for p in tmp_path.glob("*.csv")) == sorted(f"dropping-{name}" for name in names)
    batches = program.held_out()
    close = dict(rel=1e-3, abs=1e-9)
    for seed in (0, 1):
        layer, rms = models["layer", seed], models["rms", seed]
        mine = {name: table[table.seed == seed].reset_index(drop=True) for name, table in tables.items()}
        assert mine["sites"].kl.tolist() == pytest.approx(by_site(layer, batches).kl.tolist(), **close)
        assert mine["gauge"].kl.tolist() == pytest.approx(by_shift(layer, (0.0, 0.5), batches).kl.tolist(), **close)

        ways = mine["ways"].set_index("way")
        assert ways.kl["as it is"] == 0
        assert ways.kl["dropped as it stands"] > 1e-4 > 1e-8 > ways.kl["dropped after centring"]
        changed = {"dropped": without_subtraction(layer), "rms": rms}
        expected = compare(layer, changed, batches).kl.tolist()
        assert ways.kl[["dropped as it stands", "trained without"]].tolist() == pytest.approx(expected, **close)

        # centring all that writes gives what LayerNorm would compute from an RMSNorm twin's weights (chapter 8)
        as_layer = copy.deepcopy(rms)
        stack = as_layer.transformer
        for holder, name in ((stack.h[0], "ln_1"), (stack.h[0], "ln_2"), (stack, "ln_f")):
            norm = ng.LayerNorm(16, eps=1e-5, bias=False)
            norm.weight = getattr(holder, name).weight
            setattr(holder, name, norm)
        centred = mine["llama"].set_index("centred")
        expected = compare(rms, {"layer": as_layer}, batches).kl["layer"]
        assert centred.kl["all that writes"] == pytest.approx(expected, rel=1e-3), "not all, or the head as well"
        assert centred.kl["the token embedding"] not in (0, pytest.approx(expected, rel=1e-3))


def test_the_ways_differ_in_their_norms(trained, program, monkeypatch):
    """Where the function is the same, the loss does not tell whether anything was done."""
    kinds = {}

    def look(model, changed, batches):
        kinds.update((way, {site.kind for site in ng.find_norms(other)}) for way, other in changed.items())
        return compare(model, changed, batches)

    monkeypatch.setattr(program, "compare", look)
    _, models = trained
    program.ways(models["layer", 0], models["rms", 0], program.held_out())
    assert kinds.pop("as it is") == {"layer"}, "the twin itself was changed"
    assert len(kinds) == 3 and set.union(*kinds.values()) == {"rms"}


def test_missing_twins_are_named_before_any_work(program, tmp_path):
    done = run(program, "--part", "losses", "--models", tmp_path / "nowhere", "--folder", tmp_path)
    assert done.exit_code == 1 and "models: expected" in done.output and "records training" in done.output
    assert not list(tmp_path.iterdir()), "something was written"


def test_versions_are_timed_against_the_original(program, tmp_path, monkeypatch):
    """On a clock that tells by their norms which version runs."""
    monkeypatch.setattr("normgeom.records.FOLDER", tmp_path)
    small = (dict(n_layer=1, n_embd=16, n_head=2, vocab_size=64, n_positions=16), ((2, 8), (1, 1)))
    monkeypatch.setattr(program, "SPEED", {"tiny": small})
    clock, costs = [0.0], {"LayerNorm": 4.0, "RMSNorm": 3.0, "Identity": 1.0}

    def tick(module, args, output):
        if type(module).__name__ in costs:
            clock[0] += costs[type(module).__name__]

    monkeypatch.setattr("normgeom_lab.precision.experiments.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(program, "FILL", 0.0)
    handle = torch.nn.modules.module.register_module_forward_hook(tick)
    try:
        done = run(program, "--part", "speed", "--rounds", 3, "--folder", tmp_path)
    finally:
        handle.remove()
    assert done.exit_code == 0, done.output
    table = ng.recorded("speed-converted").table
    assert len(table) == 6 and set(table.model) == {"tiny"}
    for (batch, length), rows in table.groupby(["batch", "length"]):
        assert (batch, length) in {(2, 8), (1, 1)}
        ratios = rows.set_index("way").ratio
        assert ratios.to_dict() == {"original": 1, "converted": 0.75, "no norms": 0.25}
    assert (table.seconds[table.way == "original"] == 12).all(), "three norms"
