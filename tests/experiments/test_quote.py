"""What the README says of speed is what was recorded."""

import re

import pandas as pd

from experiments import quote


def test_the_readme_quotes_the_records():
    assert quote.BEGIN + quote.table() + quote.END in quote.README.read_text("utf-8"), "run python -m experiments.quote"


def test_a_line_by_hand():
    norms = pd.read_csv(quote.README.parent / "figures/data/speed-norms.csv")
    here = norms.query("norm == 'rms' and way == 'normgeom' and dtype == 'float32' and backward and threads == 1")
    three = here[here["rows"] * here.d > 10**6].worst
    line = next(line for line in quote.table().splitlines() if "`rms_norm`, float32, forward and back" in line)
    low, high = re.search(r"([0-9.]+) to ([0-9.]+) on 1 thread;", line).groups()
    assert len(three) == 3
    for got, exact in ((low, three.min()), (high, three.max())):
        assert 0 <= exact - float(got) < 0.01, "rounded up"
