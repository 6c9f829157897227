"""Callables for batches: the decisions of `sirc predict`, whatever engine hands them out and kills its workers."""

import io
import os
import secrets
import shutil
import signal
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import torch

import sirc
from sirc.deploy import DecideImages, ScoreOutputs, predict_folder
from support.pages import ROOT, blocks_of
from support.tiny_selective import calibrated, encoded

DECISIONS = ["accepted", "label", "class", "confidence", "reason", "error"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 13 images, one of which is broken."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        (folder / f"{number:02}.png").write_bytes(encoded(number))
    (folder / "12.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def expected(photos):
    return predict_folder(calibrated(), photos)


def batch_of(photos, column="bytes", **others):
    files = sorted(photos.iterdir())
    images = np.empty(len(files), dtype=object)
    images[:] = [file.read_bytes() for file in files]
    return {column: images, "path": np.array([file.name for file in files]), **others}


def compare(found, expected, columns=DECISIONS):
    plain = (table[columns].astype({"label": "Int64", "class": "string"}) for table in (found, expected))
    pd.testing.assert_frame_equal(*plain, check_dtype=False, atol=1e-5)


def test_a_batch_of_encoded_images_gets_the_decisions_of_a_folder(photos, expected):
    batch = batch_of(photos, number=np.arange(13), pair=np.ones((13, 2)))
    found = DecideImages(calibrated)(batch)
    assert list(found) == ["path", "number", "pair", *DECISIONS]
    compare(found, expected, ["path", *DECISIONS[:-1]])
    assert found["number"].tolist() == list(range(13))
    assert found["error"][12].startswith("image '12.png' cannot be read: it is empty or no image")
    assert pyarrow.Table.from_pandas(found[:3]).schema.equals(pyarrow.Table.from_pandas(found[12:]).schema)
    assert list(DecideImages(calibrated(), keep="number")(batch)) == ["number", *DECISIONS]
    table = pd.DataFrame(batch_of(photos))
    compare(DecideImages(calibrated())(table), expected, DECISIONS[:-1])
    later = DecideImages(calibrated())(table[5:])  # whose index begins at 5
    compare(later, expected[5:].reset_index(drop=True), ["path", *DECISIONS[:-1]])


@pytest.mark.slow
def test_images_lie_in_dicts_or_in_one_of_several_columns(photos, expected):
    batch = batch_of(photos)
    cells = [{"bytes": data, "path": "x"} for data in batch["bytes"]]
    compare(DecideImages(calibrated(), "image")({"image": cells}), expected, DECISIONS[:-1])
    jpg = [data if number % 2 else None for number, data in enumerate(batch["bytes"])]
    png = [None if number % 2 else data for number, data in enumerate(batch["bytes"])]
    compare(DecideImages(calibrated(), ["jpg", "png"])({"jpg": jpg, "png": png}), expected, DECISIONS[:-1])
    found = DecideImages(calibrated(), ["jpg", "png"])({"jpg": [3], "__key__": ["k"]})
    assert found["error"].tolist() == ["image 'k' must be the bytes of a file; got int"]


def test_what_a_batch_lacks_or_has_twice_is_named(photos):
    batch = batch_of(photos, label=np.zeros(13))
    for options, words in (
        ({"column": "image"}, "must have a column `image`; these have bytes, path, label"),
        ({"keep": ["id"]}, "must have a column `id`"),
        ({}, "a column `label` of their own, and these batches have one too"),
    ):
        with pytest.raises(ValueError, match=words):
            DecideImages(calibrated, **options)(batch)
    with pytest.raises(ValueError, match="`classifier` must be a SelectiveClassifier or the path"):
        DecideImages(3, keep=[])(batch)


def test_a_batch_of_outputs_gets_the_confidences_of_its_scorer(tmp_path):
    logits = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    scorer = sirc.Scorer(["msp", "energy"])
    scorer.save(tmp_path / "scorer.safetensors")
    batch = {"id": np.arange(7), "logits": logits}
    expected = scorer(sirc.Outputs(logits))
    for given in (scorer, tmp_path / "scorer.safetensors"):
        for rows in (batch, pd.DataFrame({"id": batch["id"], "logits": list(logits)})):
            found = ScoreOutputs(given)(rows)
            assert list(found) == ["id", "prediction", "msp", "energy"]
            assert found["prediction"].tolist() == logits.argmax(1).tolist()
            assert all(torch.equal(torch.as_tensor(found[spec]), expected[spec]) for spec in scorer.specs)
    with pytest.raises(ValueError, match="must be an `Outputs`, a dict with `logits`"):
        ScoreOutputs(scorer)({"id": batch["id"]})
    for taken in ("prediction", "energy"):
        with pytest.raises(ValueError, match=f"a column `{taken}` of their own, and these batches have one too"):
            ScoreOutputs(scorer)({taken: batch["id"], **batch})


@pytest.fixture(scope="module")
def cluster():
    """A real Ray on this machine, which asks nobody outside of it."""
    import ray

    # The paths of sockets are short, and pytest's folders are not.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # by default 15: beside other tests, workers would get no time
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 << 20}
        ray.init(num_cpus=2, _temp_dir=folder, logging_level="ERROR", **options)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.read_op_min_num_blocks = 1  # by default 200, each a task
        yield ray
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def write_parquet(photos, path):
    rows = batch_of(photos, "image")
    table = {"id": list(rows["path"]), "image": [{"bytes": data} for data in rows["image"]], "label": [0] * 13}
    pyarrow.parquet.write_table(pyarrow.table(table), path)


def write_shards(photos, folder):
    folder.mkdir()
    files = sorted(photos.iterdir())
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for file in files[shard::2]:
                entry = tarfile.TarInfo(file.name)
                entry.size = file.stat().st_size
                archive.addfile(entry, io.BytesIO(file.read_bytes()))


def decisions_in(folder, key):
    found = pd.read_parquet(folder)
    assert found[key].is_unique  # nothing twice
    return found.sort_values(key).reset_index(drop=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_decides_about_folders_parquet_and_webdataset_and_outlives_a_worker(
    cluster, graph, photos, expected, tmp_path, monkeypatch
):
    class Mortal(DecideImages):  # here, so that it goes to the worker whole
        """Decides; the first that meets a certain image in a column, which a file names, dies of it."""

        def __call__(self, batch):
            deadly = Path(self.classifier).with_name("deadly")
            if deadly.exists() and any(
                name.endswith("07.png") for name in batch.get(deadly.read_text(encoding="utf-8"), ())
            ):
                deadly.rename(deadly.with_name(f"died of {deadly.read_text(encoding='utf-8')}"))
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    monkeypatch.chdir(tmp_path)
    shutil.copy(graph, "model.onnx")
    shutil.copytree(photos, "photos")
    write_parquet(photos, "images.parquet")
    write_shards(photos, Path("shards"))
    monkeypatch.setattr(sirc.deploy, "DecideImages", Mortal)
    namespace = {}
    for kind, deadly in (("python ray", "id"), ("python ray workers", "path")):
        Path("deadly").write_text(deadly, encoding="utf-8")
        (block,) = blocks_of(ROOT / "docs" / "scale.md", kind)
        exec(compile(block, "scale.md", "exec"), namespace)
        assert Path(f"died of {deadly}").exists()
    same = [name for name in DECISIONS if name != "error"]
    for name, key in (("photos", "path"), ("parquet", "id"), ("shards", "__key__"), ("workers", "path")):
        compare(decisions_in(f"decisions/{name}", key), expected, same)
    logits = np.random.default_rng(0).standard_normal((7, 3))
    scorer = sirc.Scorer(["msp", "energy"])
    scorer.save("scorer.safetensors")
    rows = cluster.data.from_pandas(pd.DataFrame({"id": range(7), "logits": list(logits)}))
    found = rows.map_batches(ScoreOutputs(Path("scorer.safetensors").resolve()), batch_size=3).to_pandas()
    assert found.sort_values("id")["energy"].tolist() == scorer(sirc.Outputs(logits))["energy"].tolist()
