"""What chapters share: bad parameters are named, cases are drawn from one seed, and deviations are measured."""

import math
import re
from functools import partial

import nbformat
import papermill
import pytest
import torch
from nbformat import v4
from normgeom_lab.common.checks import Draws, check_parameters, error, excess, outside, relative
from papermill.exceptions import PapermillExecutionError


def test_parameters_at_their_defaults():
    assert check_parameters(d=(8, 8, range(2, 100)), size=("a", "a", {"a", "b"}), model=("a", "a", str))
    assert not check_parameters(d=(9, 8, range(2, 100)), model=("a", "a", str)), "9 is not the default 8"


IN = "expected a value in"


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        *(((value, 8, range(2, 100)), f"{IN} range(2, 100), got {value!r}") for value in (1, "8", 8.0, True)),
        (("many", 8, range(10**12)), f"{IN} range(0, 1000000000000), got 'many'"),
        (("c", "a", {"a"}), f"{IN} {{'a'}}, got 'c'"),
        ((["a"], "a", {"a"}), f"{IN} {{'a'}}, got ['a']"),
        ((3, "a", str), "expected str, got 3"),
    ],
)
def test_a_bad_parameter_is_named(parameter, message):
    with pytest.raises(ValueError, match="^" + re.escape(f"parameter p: {message}")):
        check_parameters(good=("a", "a", str), p=parameter)


CELLS = {
    "parameters": "d: int = 8",
    "check": "from normgeom_lab.common.checks import check_parameters\n\ncheck_parameters(d=(d, 8, range(2, 100)))",
}


def test_a_misspelt_parameter_of_papermill_stops_the_notebook(tmp_path):
    cells = [v4.new_code_cell(source, metadata=dict(tags=[tag])) for tag, source in CELLS.items()]
    kernel = dict(name="python3", display_name="Python 3", language="python")
    nbformat.write(v4.new_notebook(cells=cells, metadata=dict(kernelspec=kernel)), tmp_path / "in.ipynb")
    run = partial(papermill.execute_notebook, tmp_path / "in.ipynb", None, progress_bar=False)
    assert run(parameters=dict(d=9)).cells[-1].outputs[0].data["text/plain"] == "False"
    with pytest.raises(PapermillExecutionError, match="parameters: expected some of d, got dd"):
        run(parameters=dict(d=9, dd=9))


def test_deviations():
    a, b = torch.tensor([1.0, -4.0]), torch.tensor([[1.0, 2.0], [3.0, -5.0]])
    assert error(a, b) == 6 and error(b, a) == 6 and error(2, 5.0) == 3
    assert relative(a, b) == 6 / 5, "in units of b, not of a"
    assert excess(a, b) == 1 and excess(b, a) == 6 and excess(a, a + 1) == 0
    assert outside(2.0, 6.0, torch.tensor([2.0, 4.0])) == 1 and outside(2.0, 6.0, 5.0) == 0.5
    assert error(torch.tensor([1 + 2**-9], dtype=torch.float16), 1.0) == 2**-9, "float64 before the difference"
    assert error(torch.ones(2, requires_grad=True), 0.0) == 1
    assert all(math.isnan(measure(torch.tensor([0.0, math.nan]), 0.0)) for measure in (error, excess))


def test_draws_are_of_their_seed():
    first, second, other = Draws(3), Draws(3), Draws(4)
    state = torch.random.get_rng_state()
    assert first(2, 3).dtype == torch.float64 and second(2, 3).shape == (2, 3)
    assert torch.equal(drawn := first(4), second(4)) and not torch.equal(drawn, other(4))
    for (x, gain, bias, eps), d in zip(first.cases(5, 4, 7, zeros=1, repeats=2, low=0.1, high=10), (4, 7), strict=True):
        assert torch.equal(x, second.rows(5, d, 0.1, 10)) and torch.equal(gain, second.gain(d, 1, 2))
        assert torch.equal(bias, second(d)) and eps == second.eps()
    assert torch.equal(state, torch.random.get_rng_state()), "torch's own generator moved"


def test_drawn_gains_constants_and_rows():
    draw = Draws(0)
    gains = torch.stack([draw.gain(9, zeros=2, repeats=3) for _ in range(200)])
    sizes = gains.abs().sort(dim=-1).values
    assert bool((sizes[:, :2] == 0).all()) and bool((sizes[:, 2] >= 0.5).all())
    assert bool((sizes[:, 6:] == 2).all()) and bool((sizes[:, 5] < 2).all())
    assert bool(((gains > 0).any(0) & (gains < 0).any(0) & (gains == 0).any(0)).all()), "every place takes each kind"
    logs = torch.tensor([draw.eps(1e-6, 1e-2) for _ in range(2000)]).log10()
    assert logs.min() >= -6 and logs.max() <= -2 and abs(float(logs.mean()) + 4) < 0.15, "uniform in the logarithm"
    rows = draw.rows(5, 4000, 1e-4, 1.0)
    assert torch.allclose(rows.std(-1).log10(), torch.arange(-4.0, 1).double(), atol=0.05)
    assert bool((rows.mean(-1).abs() > 0.03 * rows.std(-1)).all()), "centred already: a forgotten mean would not show"
