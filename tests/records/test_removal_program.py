"""Norms taken out of the pages' network, with a few updates: one frozen scale a norm, two arms a seed."""

import normgeom as ng
import pytest
from click.testing import CliRunner
from normgeom.models.sites import find_norms
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, windows
from normgeom.training.stages import held_out_loss
from normgeom_lab.common.typed import recorded_twins

pytestmark = pytest.mark.slow


def test_both_records_are_of_the_pages_network(monkeypatch, tmp_path):
    from records import removal

    model = recorded_twins()["layer"]
    ids = byte_tokens("".join(load_corpus("stdlib").texts()))
    held_out = windows(ids[-removal.APART :], removal.LENGTH, removal.BATCH)
    monkeypatch.setattr(removal, "SEEDS", (3,))
    options = ["--gap", "1", "--settle", "2", "--folder", str(tmp_path)]
    done = CliRunner().invoke(removal.main, options, catch_exceptions=False)
    assert done.exit_code == 0, done.output

    monkeypatch.setattr("normgeom.records.FOLDER", tmp_path)
    alone, runs = (ng.recorded(name).table for name in ("removal-alone", "removal-training"))
    names = [site.name for site in find_norms(model, held_out[0])]
    assert sorted(alone.site) == sorted(names) and alone["none"].nunique() == 1
    assert alone["none"][0] == pytest.approx(held_out_loss(model, held_out), rel=1e-5)
    assert alone["all"][0] > alone.loss.max(), "all norms out cost less than one"
    assert runs.groupby("arm").updates.max().to_dict() == {"removed": 11, "kept": 11}, "arms of different lengths"
    assert runs.query("arm == 'removed'").frozen.max() == 9 and not runs.query("arm == 'kept'").frozen.any()
    assert set(runs.query("updates == 0 and frozen == 0").loss) == {alone["none"][0]}, "an arm begins elsewhere"
