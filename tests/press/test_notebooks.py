"""The committed notebooks."""

import os

import nbformat
import pytest
from nbformat import v4
from press.notebooks import notebooks, setup_cell, text_outputs


@pytest.fixture(scope="module")
def mean(made):
    return nbformat.read(made / "notebooks/01-mean.ipynb", as_version=4)


def test_the_same_chapter_gives_the_same_bytes(book, made):
    for name, content in notebooks(book).items():
        assert (made / "notebooks" / name).read_bytes() == content


def test_the_title_then_the_setup_then_the_chapter(mean):
    first, setup, parameters, *_ = mean.cells
    assert first.source.startswith("# The mean\n")
    assert setup.metadata.tags == ["setup", "nbval-ignore-output"]
    assert parameters.metadata.tags == ["parameters"]


def test_counts_and_ids_are_in_order(mean):
    code = [cell for cell in mean.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [cell.id for cell in mean.cells] == [f"cell-{n}" for n in range(len(mean.cells))]
    result = code[2].outputs[1]
    assert (result.output_type, result.execution_count) == ("execute_result", 3)


def test_metadata_asks_colab_for_a_gpu_and_tells_nothing_of_the_run(mean):
    assert mean.metadata.accelerator == "GPU"
    assert mean.metadata.colab == {"gpuType": "T4", "provenance": []}
    assert "papermill" not in str(mean.metadata)
    assert {key for cell in mean.cells for key in cell.metadata} == {"tags", "cellView", "jupyter"}


def test_a_figure_is_run_but_not_compared_and_keeps_its_caption(mean):
    figure = next(n for n, cell in enumerate(mean.cells) if "A dot at the origin" in cell.source)
    assert mean.cells[figure].outputs == []
    assert "nbval-ignore-output" in mean.cells[figure].metadata.tags
    assert mean.cells[figure + 1].source == "*Fig. 1.1.* A dot, see (1.1)."


def test_what_the_page_folds_is_folded_in_jupyter_and_a_form_in_colab(mean):
    folded = [cell for cell in mean.cells if cell.source.startswith("#@title ")]
    assert [cell.source.partition("\n")[0].removeprefix("#@title ") for cell in folded] == [
        "Setup: installs the library where it is missing, as on Colab",
        "Parameters: d, seed",
        "Check of (1.1), (1.2), (1.3), Theorem 1.1",
        "Code of this figure",
        "Code of this table",
    ]
    for cell in folded:
        assert cell.metadata.cellView == "form" and cell.metadata.jupyter == {"source_hidden": True}


def test_a_table_is_compared_and_keeps_its_caption(mean):
    at = next(n for n, cell in enumerate(mean.cells) if "before the table" in cell.source)
    assert "nbval-ignore-output" not in mean.cells[at].metadata.get("tags", [])
    printed, table = mean.cells[at].outputs
    assert printed.text == "before the table\n"
    assert set(table.data) == {"text/plain", "text/markdown"} and table.data["text/plain"].endswith("3       9")
    assert mean.cells[at + 1].source == "*Table 1.1.* Squares, see (1.1)."


def test_printed_text_is_one_stream_without_stderr():
    streams = [("stdout", "a"), ("stderr", "no"), ("stdout", "b\n")]
    kept = text_outputs([v4.new_output("stream", name=name, text=text) for name, text in streams])
    assert kept == [v4.new_output("stream", name="stdout", text="ab\n")]


@pytest.mark.parametrize("kind", ["text/html", "image/png"])
def test_more_than_text_is_not_compared(kind):
    assert text_outputs([v4.new_output("display_data", data={kind: "x", "text/plain": "y"})]) is None


def test_the_setup_installs_from_the_repository_once_it_has_an_address():
    project = {"name": "toy", "urls": {"Repository": "https://github.com/toys/book"}}
    assert '%pip install -q "toy[notebooks] @ git+https://github.com/toys/book"' in setup_cell(project).source


def test_without_an_address_the_setup_takes_a_wheel_beside_the_notebook(tmp_path, monkeypatch):
    source = setup_cell({"name": "no_such_library"}).source
    code, _, install = source.rpartition("\n")
    assert install == '    %pip install -q "{wheels[-1]}[notebooks]"'
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with pytest.raises(ModuleNotFoundError, match="put its wheel beside this notebook"):
        exec(code)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    (tmp_path / "no_such_library-1-py3-none-any.whl").touch()
    found = {}
    exec(code, found)
    assert found["wheels"] == [tmp_path / "no_such_library-1-py3-none-any.whl"]
