"""The table of speeds that the README quotes, out of figures/data: ``python -m experiments.quote`` writes it."""

import math
from pathlib import Path

import click
import normgeom as ng

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- speed: written by python -m experiments.quote -->\n", "<!-- end of speed -->"


def table() -> str:
    """Markdown: what is measured, against what, and by which factor ours is faster in the worst run."""
    norms = ng.recorded("speed-norms").table.query("way == 'normgeom' and goal > 0")
    lines = ["| what | against | times as fast |", "| --- | --- | --- |"]
    for (norm, dtype, backward), rows in norms.groupby(["norm", "dtype", "backward"], sort=False):
        name, both = f"{norm}_norm", ", forward and back" if backward else ", forward"
        by_threads = rows.groupby("threads").worst
        found = "; ".join(f"{low:.2f} to {high:.2f} on {n} thread{'s'[: n - 1]}" for n, low, high in _spans(by_threads))
        lines.append(f"| `{name}`, {dtype}{both} | `F.{name}` | {found} |")
    for row in ng.recorded("speed-geometry").table.itertuples():
        lines.append(f"| {row.what}, d = {row.d} | `{row.against}` | {math.floor(row.ratio)} |")
    for row in ng.recorded("speed-survey").table.itertuples():
        what = f"survey of every norm, three directions, GPT-2 small, {row.texts} × {row.length} tokens"
        lines.append(f"| {what} | the bare forward pass | {_floor(1 / row.worst):.2f} |")
    return "\n".join(lines) + "\n"


def _spans(groups):
    """Smallest and largest of each group, in hundredths."""
    return [(n, _floor(values.min()), _floor(values.max())) for n, values in groups]


def _floor(value: float) -> float:
    """In hundredths, rounded down, so that nothing looks faster than it was."""
    return math.floor(100 * value) / 100


@click.command()
def main() -> None:
    """Write the table of speeds into the README, between its marks."""
    text = README.read_text("utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    README.write_text(text[:begin] + table() + text[end:], "utf-8")


if __name__ == "__main__":
    main()
