"""normgeom doctor: a table, a line a finding, and an exit code that a script can use."""

import pytest
import torch
from click.testing import CliRunner
from normgeom.cli import main
from normgeom.commands.doctor import examine
from runs import save_words
from tiny_models import tiny


def invoke(folder):
    return CliRunner().invoke(main, ["doctor", str(folder)])


@pytest.fixture
def llama():
    return tiny("llama", initializer_range=0.2)


def test_a_sound_model(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    save_words(tmp_path)
    result = invoke(tmp_path)
    assert result.exit_code == 0, result.output
    head, *rows, last = result.stdout.splitlines()
    assert head.split()[:4] == ["norms", "kind", "d", "gain"] and last == "5 norms, 0 problems"
    assert [row.split()[:6] for row in rows] == [
        ["model.layers.*.input_layernorm", "×", "2", "rms", "32", "w"],
        ["model.layers.*.post_attention_layernorm", "×", "2", "rms", "32", "w"],
        ["model.norm", "×", "1", "rms", "32", "w"],
    ]
    assert all("  plain AdamW  " in row and row.endswith("%") for row in rows)


def test_problems_are_a_line_each_and_the_exit_code(llama, tmp_path):
    llama.config.rms_norm_eps = 9.0
    llama.save_pretrained(tmp_path)
    result = invoke(tmp_path)
    assert result.exit_code == 1, result.output
    said = [line for line in result.stdout.splitlines() if line.startswith("problem: ")]
    dominates = [line for line in said if ": ε dominates: the median vector (s = " in line]
    assert len(dominates) == 3 and "(the worst of 2 such)" in dominates[0], "blocks that agree are one line"
    alike = [f for f in examine(str(tmp_path)) if "input_layernorm" in f.site and "dominates" in f.problem]
    assert f" {max(alike, key=lambda f: f.size).site}: ε dominates" in dominates[0], "not the worst"
    assert result.stdout.splitlines()[-1] == "5 norms, 5 problems"


def test_an_encoder(tmp_path):
    tiny("bert", initializer_range=0.2).save_pretrained(tmp_path)
    result = invoke(tmp_path)
    assert result.exit_code == 0 and result.stdout.endswith("\n5 norms, 0 problems\n"), result.output


def test_what_it_cannot_examine_is_one_line(llama, tmp_path):
    (tmp_path / "empty").mkdir()
    llama.model.norm.weight.data[0] = torch.nan
    llama.save_pretrained(tmp_path / "nan")
    tiny("wav2vec2").save_pretrained(tmp_path / "waves")
    for name, said in (
        ("empty", "cannot be loaded"),
        ("nan", "has wrong weights, 1 in all: model.norm.weight (NaN or Inf)"),
        ("waves", "example_inputs: none given"),
    ):
        result = invoke(tmp_path / name)
        (last,) = result.stderr.splitlines()[-1:]
        assert result.exit_code == 2 and last.startswith("Error: ") and said in last, result.output
