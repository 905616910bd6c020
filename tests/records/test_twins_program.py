"""The program that writes the pages' networks, on a training laid out by hand."""

import json

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from normgeom.models.gpt2 import gpt2
from normgeom.training.twins import save_twin
from normgeom.training.twins import twins as pair
from normgeom_lab.common.recording import recorded_tensors
from normgeom_lab.common.typed import recorded_twins

from records import twins

SIZE = dict(layers=2, width=8, heads=2, lr=0.003, steps=5, batch=4, length=16)


@pytest.fixture
def trained(tmp_path):
    """A folder as `normgeom train` leaves it, and the models in it."""
    models = dict(zip(("layer", "rms"), pair(gpt2(256, 16, 8, 2, 2), 0), strict=True))
    for kind, loss in (("layer", 2.5), ("rms", 2.75)):
        with torch.no_grad():
            for parameter in models[kind].parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        save_twin(models[kind], tmp_path / "run" / kind / "model")
        pd.DataFrame(dict(step=[0, 5], loss=[5.5, loss])).to_parquet(tmp_path / "run" / kind / "loss.parquet")
    asked = dict(size=SIZE, corpus=dict(name="stdlib", python="3.11"), held_out=64, seed=3)
    (tmp_path / "run/provenance.json").write_text(json.dumps(dict(asked=asked, had=dict(tokens=320))), "utf-8")
    return tmp_path / "run", models


def test_what_is_written_are_the_twins_in_float16(trained, folder):
    run, models = trained
    done = CliRunner().invoke(twins.main, [str(run), "--folder", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    tensors, about = recorded_tensors("twins")
    assert {t.dtype for t in tensors.values()} == {torch.float16}
    assert (about["layers"], about["heads"], float(about["eps"])) == ("2", "2", 1e-5)
    assert about["loss"] == "layer 2.5000 nats a byte, rms 2.7500 nats a byte"
    assert about["corpus"] == "stdlib of Python 3.11, 320 bytes" and about["seed"] == "3"
    for kind, model in recorded_twins().items():
        expected = models[kind].state_dict()
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, expected[name].half().float()), f"{kind}.{name}"


def test_what_float16_does_not_hold_is_refused_by_name(trained, folder):
    run, models = trained
    with torch.no_grad():
        models["rms"].transformer.wpe.weight[0, 0] = 1e5
    save_twin(models["rms"], run / "rms/model")
    done = CliRunner().invoke(twins.main, [str(run), "--folder", str(folder)])
    assert done.exit_code == 1 and "float16 does not hold rms.wpe.weight" in done.output
    assert not list(folder.glob("twins*")), "a record was left behind"
