"""What the recorded race of the norms says: tables of ``speed-norms``, a row a size, dtype, pass, norm and way.

Its columns: ``threads``, ``rows``, ``d``, ``dtype``, ``backward`` (whether the backward pass is in the time), ``norm``
("layer", "rms", or "copy" for a copy of the input), ``way`` (whose function), ``seconds``, ``over_copy`` (time over
that of the copy), ``torch_over_this`` (time of torch's function over that of this way) and ``worst`` (the smallest of
``torch_over_this`` among the runs, each a process of its own; the others are medians over the rounds of all runs).
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
PASSES = {False: "forward", True: "forward and back"}
Sizes = Iterable[tuple[int, int]]


def at_size(race: pd.DataFrame, rows: int, d: int, threads: int = 1) -> pd.DataFrame:
    """The rows of one size and number of threads, without the copy.

    Raises:
        ValueError: the race has no such size with that many threads.
    """
    found = race[(race.rows == rows) & (race.d == d) & (race.threads == threads) & (race.norm != "copy")]
    if found.empty:
        sizes = sorted(set(zip(race.threads, race.rows, race.d, strict=True)))
        raise ValueError(f"threads, rows, d: expected one of {sizes}, got {(threads, rows, d)}")
    return found


def costs(race: pd.DataFrame, sizes: Sizes) -> pd.DataFrame:
    """Time over that of a copy with one thread: a row a size, norm and way, a column a pass and dtype.

    Raises:
        ValueError: the race has no such size.
    """
    parts = {f"{rows} × {d}": _in_words(at_size(race, rows, d)) for rows, d in sizes}
    long = pd.concat(parts, names=["rows × features"])
    return (
        long.set_index(["norm", "way", "pass", "dtype"], append=True).droplevel(1).over_copy.unstack(["pass", "dtype"])
    )


def speedups(race: pd.DataFrame, rows: int, d: int, way: str) -> pd.DataFrame:
    """torch's time over that of a way, with one thread: a row a norm, a column a pass and dtype.

    Raises:
        ValueError: the race has no such size, or no such way there.
    """
    found = _of_way(_in_words(at_size(race, rows, d)), way)
    return found.set_index(["norm", "pass", "dtype"]).torch_over_this.unstack(["pass", "dtype"])


def least_speedups(race: pd.DataFrame, sizes: Sizes, way: str) -> pd.DataFrame:
    """The smallest ratio, over sizes and runs, of torch's time to that of a way (claim-norm-speed).

    Returns:
        a row for each ``(norm, dtype, backward)`` in which the way ran, named as in the race; columns "1 thread"
        and "2 threads".

    Raises:
        ValueError: the race has no such size with 1 or with 2 threads, or no such way there.
    """
    sizes = list(sizes)
    found = _of_way(pd.concat([at_size(race, *size, threads) for size in sizes for threads in (1, 2)]), way)
    least = found.groupby(["norm", "dtype", "backward", "threads"]).worst.min().unstack("threads")
    return least.set_axis(["1 thread", "2 threads"], axis=1)


def layer_over_rms(race: pd.DataFrame, sizes: Sizes, layer: str, rms: str) -> pd.DataFrame:
    """Time of LayerNorm the one way over that of RMSNorm the other, with one thread (claim-mean-cost).

    Returns:
        a row for each ``(pass, dtype)`` in words, a column a size.

    Raises:
        ValueError: the race has no such size, or no such way there.
    """
    columns = {}
    for rows, d in sizes:
        found = _in_words(at_size(race, rows, d)).set_index(["pass", "dtype"])
        times = [
            _of_way(found[found.norm == NORMS[norm]], way).seconds for norm, way in (("layer", layer), ("rms", rms))
        ]
        columns[f"{rows} × {d}"] = times[0] / times[1]
    return pd.DataFrame(columns)


def _of_way(found: pd.DataFrame, way: str) -> pd.DataFrame:
    if way not in set(found.way):
        raise ValueError(f"way: expected one of {sorted(set(found.way))}, got {way!r}")
    return found[found.way == way]


def _in_words(found: pd.DataFrame) -> pd.DataFrame:
    return found.assign(**{"norm": found.norm.map(NORMS), "pass": found.backward.map(PASSES)})
