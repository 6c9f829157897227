"""A folder gets one row for each image, in order, whatever its files are."""

import errno
import os
import signal
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import sirc
from sirc import SelectiveClassifier
from sirc.cli.options import has_begun
from sirc.data import image_folder
from sirc.data.preprocess import Preprocess
from sirc.deploy.predict import COLUMNS, predict_folder, save_decisions
from sirc.progress import Progress
from support.interpreters import python
from support.tiny_selective import CLASSES, PREPROCESS, SIDE, SPEC, calibrated, encoded, pixels

GOOD = ["a.png", "b/c/d.jpg", "b/grey.png", "b/rgba.png", "b/sixteen.png", "z/ünï cödé 图.png", "z/upper.JPG"]
BROKEN = ["b/empty.png", "b/narrow.png", "b/text.png", "z/truncated.png"]


@pytest.fixture(scope="module")
def selective():
    return calibrated()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for name in (*GOOD, *BROKEN):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(GOOD):
        Image.fromarray(pixels(number)).save(root / name)
    Image.fromarray(pixels(2)[..., 0]).save(root / "b/grey.png")
    Image.fromarray(pixels(2)[..., 0].astype(np.uint16) * 257).save(root / "b/sixteen.png")
    Image.fromarray(np.dstack((pixels(3), np.full((24, 24), 9, np.uint8)))).save(root / "b/rgba.png")
    (root / "b/empty.png").touch()
    (root / "b/text.png").write_text("hello", encoding="utf-8")
    (root / "z/truncated.png").write_bytes(encoded(1)[:-300])
    Image.new("1", (3_000_000, 1)).save(root / "b/narrow.png")
    (root / "notes.txt").write_text("no image", encoding="utf-8")
    (root / ".hidden.png").write_bytes(encoded(1))
    (root / "nothing").mkdir()
    return root


@pytest.fixture(scope="module")
def table(selective, folder):
    return predict_folder(selective, folder, batch_size=3)


def test_every_image_has_a_row_in_sorted_order(table):
    assert list(table.columns) == COLUMNS
    assert list(table["path"]) == sorted([*GOOD, *BROKEN])


def test_rows_say_what_the_classifier_says(table, selective, folder):
    prepare = PREPROCESS.test()
    for row in table[table["error"] == ""].to_dict("records"):
        if row["path"] in ("b/grey.png", "b/sixteen.png", "b/rgba.png"):
            continue
        x = prepare(Image.open(folder / row["path"]).convert("RGB"))[None]
        label, confidence, accepted, _ = selective(x)
        assert row["label"] == label.item()
        assert row["class"] == CLASSES[label]
        assert row["confidence"] == pytest.approx(confidence.item(), abs=1e-6)
        assert row["accepted"] is accepted.item()
        assert (row["reason"] == "") == row["accepted"]


def test_bits_and_transparency_do_not_matter(table, selective):
    rows = table.set_index("path")
    grey = rows.loc["b/grey.png", "confidence"]
    assert grey == pytest.approx(rows.loc["b/sixteen.png", "confidence"], abs=1e-6)
    confidence = selective(PREPROCESS.test()(Image.fromarray(pixels(3)))[None]).confidence
    assert rows.loc["b/rgba.png", "confidence"] == pytest.approx(confidence.item(), abs=1e-6)


def test_broken_images_have_their_error_and_are_not_accepted(table):
    broken = table[table["path"].isin(BROKEN)]
    assert (broken["error"].str.len() > 10).all()
    assert not broken["accepted"].any()
    assert broken[["label", "class", "confidence"]].isna().all(axis=None)
    assert (broken["reason"] == "").all()
    words = broken.set_index("path")["error"]
    assert "empty or no image" in words["b/empty.png"]
    assert "damaged" in words["z/truncated.png"]
    assert "too narrow" in words["b/narrow.png"]  # or its 3 MB would become 2 TB
    assert set(table["error"]) - set(words) == {""}


@pytest.mark.slow
def test_batches_and_workers_change_nothing(table, selective, folder):
    for options in ({"batch_size": 1}, {"batch_size": 100}, {"batch_size": 2, "workers": 2}):
        other = predict_folder(selective, folder, **options)
        pd.testing.assert_frame_equal(other, table, check_exact=False, atol=1e-6)


@pytest.mark.slow
def test_a_graph_decides_the_same_for_the_same_reasons(table, folder, graph):
    pd.testing.assert_frame_equal(predict_folder(graph, folder), table, check_exact=False, atol=1e-4)
    assert set(table["reason"]) > {""}


def test_the_reason_is_the_part_that_took_the_confidence_away(folder):
    selective = calibrated().set_threshold(1e6)  # no softmax reaches that
    assert set(predict_folder(selective, folder)["reason"]) == {"softmax", ""}
    prepare = PREPROCESS.test()
    x = torch.stack([prepare(Image.fromarray(pixels(number))) for number in range(300, 360)])
    logits, _ = selective.outputs(x)
    softmax = logits.double().softmax(-1)
    part = -(-(softmax * softmax.log()).sum(-1)).log()  # −log H, what the softmax alone says
    seen = set()
    for value in (float(selective(x).confidence.quantile(0.5)), 1e6):
        found, reasons = selective.set_threshold(value).explain(x)
        seen |= set(reasons)
        for accepted, reason, alone in zip(found.accepted.tolist(), reasons, part.tolist(), strict=True):
            assert reason == ("" if accepted else "softmax" if alone < value else "residual")
    assert seen == {"", "softmax", "residual"}


def test_the_file_is_whole_or_absent_and_reads_back(table, tmp_path, monkeypatch):
    path = tmp_path / "new" / "decisions.csv"
    save_decisions(table, path)
    back = pd.read_csv(path, keep_default_na=False)
    assert list(back["path"]) == list(table["path"])
    assert list(back["accepted"]) == list(table["accepted"])
    known = table["confidence"].notna()
    np.testing.assert_array_equal(back["confidence"][known].astype(float), table["confidence"][known])
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="overwrite"):
        save_decisions(table, path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_decisions(table[:2], path, overwrite=True)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["decisions.csv"]


@pytest.fixture
def deciding(monkeypatch):
    """Count the images that are decided about, and stop at one of the batches."""
    explain = SelectiveClassifier.explain

    def watch(stop_at=0):
        seen = []

        def watching(self, images):
            seen.append(len(images))
            if len(seen) == stop_at:
                raise KeyboardInterrupt
            return explain(self, images)

        monkeypatch.setattr(SelectiveClassifier, "explain", watching)
        return seen

    return watch


@pytest.mark.slow
def test_a_stopped_call_goes_on_and_other_settings_begin_anew(table, selective, folder, tmp_path, deciding):
    path, options = tmp_path / "decisions.csv", {"batch_size": 3}
    save_decisions(table, tmp_path / "whole.csv")

    def stopped(**changes):
        deciding(stop_at=3)
        with pytest.raises(KeyboardInterrupt):
            predict_folder(selective, folder, path=path, **options, **changes)
        assert not path.exists()

    stopped()
    seen = deciding()
    pd.testing.assert_frame_equal(predict_folder(selective, folder, path=path, **options), table)
    assert 0 < sum(seen) < len(GOOD) - 3
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["decisions.csv", "whole.csv"]  # and nothing left over

    with pytest.raises(FileExistsError, match="overwrite=True"):
        predict_folder(selective, folder, path=path, **options)
    for changes in ({"overwrite": True}, {"batch_size": 2}, {"classifier": calibrated().set_threshold(0.5)}):
        path.unlink()
        stopped()
        seen = deciding()
        again = {"classifier": selective, "folder": folder, "path": path, **options, **changes}
        predict_folder(**again)
        assert sum(seen) == len(GOOD)
        assert sorted(os.listdir(tmp_path)) == ["decisions.csv", "whole.csv"]


def test_who_began_to_replace_a_file_may_go_on(selective, folder, tmp_path, deciding):
    path = tmp_path / "decisions.csv"
    path.write_text("older", encoding="utf-8")
    deciding(stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        predict_folder(selective, folder, path=path, overwrite=True, batch_size=3)
    assert path.read_text(encoding="utf-8") == "older"
    assert has_begun(path)
    seen = deciding()
    predict_folder(selective, folder, path=path, batch_size=3)
    assert sum(seen) < len(GOOD) - 3
    assert path.read_text(encoding="utf-8") != "older"
    assert not has_begun(path)


def test_images_that_were_changed_are_decided_about_again(selective, tmp_path, deciding):
    for number in range(4):
        Image.fromarray(pixels(number)).save(tmp_path / f"{number}.bmp")
    deciding(stop_at=4)
    with pytest.raises(KeyboardInterrupt):
        predict_folder(selective, tmp_path, path=tmp_path / "d.csv", batch_size=1)
    Image.fromarray(pixels(9)).save(tmp_path / "0.bmp")  # of the same size
    os.utime(tmp_path / "0.bmp", ns=(1, 1))
    deciding()
    found = predict_folder(selective, tmp_path, path=tmp_path / "d.csv", batch_size=1)
    pd.testing.assert_frame_equal(found, predict_folder(selective, tmp_path, batch_size=1))


KILLED = """
import os, signal, sys
import sirc._utils.parts
from sirc import SelectiveClassifier
from sirc.deploy import predict_folder
from support.tiny_selective import calibrated

sirc._utils.parts.SECONDS = 0
explain, batches = SelectiveClassifier.explain, []

def dying(self, images):
    batches.append(images)
    if len(batches) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return explain(self, images)

SelectiveClassifier.explain = dying
predict_folder(calibrated(), sys.argv[1], path=sys.argv[2], batch_size=3)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_call_goes_on(table, selective, folder, tmp_path, deciding):
    killed = python("-c", KILLED, folder, tmp_path / "decisions.csv")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    seen = deciding()
    found = predict_folder(selective, folder, path=tmp_path / "decisions.csv", batch_size=3)
    pd.testing.assert_frame_equal(found, table)
    assert 0 < sum(seen) < len(GOOD) - 3


def test_progress_is_lines_of_text_if_they_are_asked_for(selective, folder, capsys):
    for progress in (True, False, None):
        predict_folder(selective, folder, progress=progress)
    assert capsys.readouterr().err.count("predict: 11/11 images in ") == 1


def test_progress_counts_every_image(selective, folder):
    counts = []

    class Counting(Progress):
        def task(self, name, total, **_):
            counts.append(total)
            return super().task(name, total)

    predict_folder(selective, folder, batch_size=2, progress=Counting())
    assert counts == [len(GOOD) + len(BROKEN)]


@pytest.mark.slow
def test_images_that_keep_their_size_are_taken_one_by_one(tmp_path, selective, graph):
    Image.fromarray(pixels(1, 20, 30)).save(tmp_path / "a.png")
    Image.fromarray(pixels(2, SIDE, SIDE)).save(tmp_path / "b.png")
    Image.fromarray(pixels(3, 1, 1)).save(tmp_path / "c.png")
    own = Preprocess(resize=None, crop=None, mean=PREPROCESS.mean, std=PREPROCESS.std)
    table = predict_folder(selective, tmp_path, preprocess=own)
    assert list(table["error"] == "") == [True, True, False]  # a kernel of 3 × 3 cannot see one pixel
    assert table["error"][2].startswith("the network cannot take an image of 1 × 1 pixels: ")
    by_graph = predict_folder(graph, tmp_path, preprocess=own)
    assert list(by_graph["error"] == "") == [False, True, False]
    assert "16 × 16" in by_graph["error"][0]


def test_mistakes_are_answered_in_words(tmp_path, selective, folder):
    with pytest.raises(FileNotFoundError, match="no image in or below"):
        predict_folder(selective, tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        predict_folder(selective, tmp_path / "none")
    with pytest.raises(ValueError, match="batch_size"):
        predict_folder(selective, folder, batch_size=0)
    with pytest.raises(ValueError, match="must be a SelectiveClassifier or the path"):
        predict_folder(3, folder)
    with pytest.raises(ValueError, match="how"):
        predict_folder(calibrated(preprocess=None), folder)
    fresh = SelectiveClassifier(selective.model, selective.scorer, SPEC, preprocess=PREPROCESS)
    with pytest.raises(sirc.NotFittedError, match="calibrate"):
        predict_folder(fresh, folder)


def test_a_pipe_is_no_image_and_a_link_that_leads_nowhere_is_a_broken_one(selective, tmp_path):
    (tmp_path / "sub").mkdir()
    for place in (tmp_path, tmp_path / "sub"):
        os.mkfifo(place / "pipe.png")
        (place / "link.png").symlink_to(place / "nowhere.png")
    Image.new("RGB", (16, 16)).save(tmp_path / "sub" / "real.png")
    found = predict_folder(selective, tmp_path)
    assert list(found["path"]) == ["link.png", "sub/link.png", "sub/real.png"]
    assert list(found["error"] == "") == [False, False, True]


def test_a_link_that_leads_to_itself_is_a_broken_image(selective, tmp_path):
    Image.fromarray(pixels(1)).save(tmp_path / "a.png")
    (tmp_path / "below").mkdir()
    for link in ("loop.png", "below/loop.png", "folder", "below/folder"):
        (tmp_path / link).symlink_to((tmp_path / link).name)
    (tmp_path / "below/up").symlink_to("..")
    table = predict_folder(selective, tmp_path)
    assert list(table["path"]) == ["a.png", "below/loop.png", "loop.png"]
    assert "cannot be opened: Too many levels of symbolic links" in table["error"][1]
    assert (table["error"] == "").tolist() == [True, False, False]
    images = image_folder(tmp_path, labelled=False, transform=selective.preprocess.test())
    assert len(sirc.extract(selective.model, images, on_error="skip", labels=False)) == 1


def test_a_failing_machine_is_not_taken_for_broken_images(selective, folder, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr("sirc.data.folder.read_image", fail)
    with pytest.raises(OSError, match="the machine failed, not the image"):
        predict_folder(selective, folder)


def test_a_failing_model_is_not_taken_for_broken_images(selective, folder, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(type(selective), "explain", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        predict_folder(selective, folder, batch_size=1)
