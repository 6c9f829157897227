"""A stage is done if its stamp has the inputs of now and its outputs are there; it is stale if it has others."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sirc._utils.imports import import_module
from sirc.experiment.stages import own_code
from sirc.experiment.stamp import Stage, folder_digest


@pytest.fixture
def stage(tmp_path):
    """A stage that `remake` does."""

    def make(text="a", **options):
        return Stage("copy", tmp_path, {"text": text, "pair": (1, 2)}, **options)

    return make


def remake(stage):
    """Write the input of a stage into a file."""
    with stage.remade() as made:
        made.append(stage.folder / "out.txt")
        made[0].write_text(stage.inputs["text"], encoding="utf-8")


def test_a_stage_is_done_once(stage, tmp_path):
    one = stage()
    assert not one.is_done()
    assert not one.is_stale()
    assert (one.inputs_before, one.made) == (None, [])
    remake(one)
    assert stage().is_done()
    assert not stage().is_stale()
    assert one.made == [tmp_path / "out.txt"]


def test_other_inputs_make_it_stale(stage):
    remake(stage("a"))
    other = stage("b")
    assert other.is_stale()
    assert not other.is_done()
    remake(other)
    assert stage("b").is_done()
    assert stage("a").is_stale()


def test_a_changed_or_lost_file_is_made_again(stage, tmp_path):
    remake(stage())
    (tmp_path / "out.txt").write_text("changed", encoding="utf-8")
    assert not stage().is_done()
    assert not stage().is_stale()
    (tmp_path / "out.txt").unlink()
    assert not stage().is_done()


def test_a_stage_that_is_killed_halfway_is_not_done(stage, tmp_path):
    remake(stage())

    with pytest.raises(KeyboardInterrupt), stage().remade():
        raise KeyboardInterrupt
    assert (tmp_path / "out.txt").exists()
    assert not stage().is_done()


def test_outputs_must_be_there_even_if_the_stamp_does_not_know_them(stage, tmp_path):
    remake(stage())
    assert not stage(outputs=[tmp_path / "other"]).is_done()
    (tmp_path / "other").touch()
    assert stage(outputs=[tmp_path / "other"]).is_done()
    (tmp_path / "store").mkdir()  # without anything in it
    assert not stage(outputs=[tmp_path / "store"]).is_done()


@pytest.mark.parametrize(
    "stamp",
    ["", "[]", "{}", '{"inputs": 3, "made": {}}', '{"inputs": {}}', "[" * 100_000]
    + [json.dumps({"inputs": {}, "made": {path: ""}}) for path in ("../other.txt", "/etc/hostname", "a/../../b", "\0")],
)
def test_a_damaged_stamp_is_none(stage, tmp_path, stamp):
    remake(stage())
    (tmp_path / ".made-from" / "copy.json").write_text(stamp, encoding="utf-8")
    assert not stage().is_stamped
    assert not stage().is_done()
    assert not stage().is_stale()


def test_what_outputs_say_of_themselves_counts(stage, tmp_path):
    def recorded(stamped):
        return stamped or json.loads((tmp_path / "note.json").read_text(encoding="utf-8"))

    (tmp_path / "note.json").write_text(json.dumps(stage().inputs), encoding="utf-8")
    assert stage(recorded=recorded).is_done()
    assert stage("b", recorded=recorded).is_stale()
    remake(stage("b"))
    assert stage("b", recorded=recorded).is_done()


def test_the_digest_of_a_folder_is_that_of_its_sources(tmp_path):
    (tmp_path / "inner" / "__pycache__").mkdir(parents=True)
    (tmp_path / "inner" / "page.js").write_text("one", encoding="utf-8")
    before = folder_digest(tmp_path)
    (tmp_path / "inner" / "__pycache__" / "page.pyc").write_text("compiled", encoding="utf-8")
    assert folder_digest(tmp_path) == before
    (tmp_path / "inner" / "page.js").write_text("two", encoding="utf-8")
    assert folder_digest(tmp_path) != before


def test_the_code_of_a_score_from_elsewhere_is_an_input(scratch_registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import sirc\n@sirc.score(needs='logits')\ndef lowest(logits):\n    return -logits.amin(-1)\n"
    Path("scores_of_mine.py").write_text(code, encoding="utf-8")
    import_module("scores_of_mine")
    own = SimpleNamespace(fit=SimpleNamespace(specs=["msp", "sirc(msp, lowest)"]))
    first = own_code(own)
    assert list(first) == ["code of scores_of_mine"]
    Path("scores_of_mine.py").write_text(code.replace("-logits", "-2 * logits"), encoding="utf-8")
    assert own_code(own) == first  # that of the code in use
    del sys.modules["scores_of_mine"]
    import_module("scores_of_mine")
    assert own_code(own) != first
    assert own_code(SimpleNamespace(fit=SimpleNamespace(specs=["scod", "vim", "both(msp, l1)"]))) == {}
    del sys.modules["scores_of_mine"]
