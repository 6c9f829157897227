"""An MLflow model of a graph decides as `sirc predict` does, wherever MLflow keeps it, and nothing is pickled."""

import io
import json
import sys
from base64 import b64encode
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from sirc.deploy import mlflow as flavour
from sirc.deploy import predict_folder
from sirc.deploy.onnx import OnnxGraph, OnnxTensor
from sirc.errors import StoreError
from support.tiny_selective import described, encoded, prepared

pytestmark = pytest.mark.slow  # importing MLflow takes seconds


@cache
def pyfunc():
    with flavour._pyfunc() as found:
        return found


@pytest.fixture
def tracking(tmp_path, monkeypatch):
    """A store of runs in a folder of the test, without SQL."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", (tmp_path / "runs").as_uri())


def images(count):
    return pd.DataFrame({"bytes": [encoded(number) for number in range(count)]})


def test_files_of_images_get_the_decisions_of_a_folder(graph, tmp_path):
    flavour.save_model(graph, tmp_path / "model")
    table = images(12)
    table.loc[7, "bytes"] = b"no image"
    (tmp_path / "photos").mkdir()
    for number, data in enumerate(table["bytes"]):
        (tmp_path / "photos" / f"{number:02}.png").write_bytes(data)
    expected = predict_folder(graph, tmp_path / "photos")
    found = pyfunc().load_model(str(tmp_path / "model")).predict(table)
    assert list(found) == list(expected)[1:]
    same = ["accepted", "label", "class", "confidence", "reason"]
    pd.testing.assert_frame_equal(found[same], expected[same], check_dtype=False)
    assert found["error"][7].startswith("image 'row 7' cannot be read")
    assert not found["accepted"][7]


def test_a_saved_model_holds_the_graph_and_what_it_promises_and_no_pickle(graph, tmp_path):
    flavour.save_model(graph, tmp_path / "model", metadata={"owner": "me"})
    files = {file.relative_to(tmp_path / "model").as_posix() for file in (tmp_path / "model").rglob("*")}
    assert files == {"MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt", "data", "data/model.onnx"}
    assert (tmp_path / "model" / "data" / "model.onnx").read_bytes() == graph.read_bytes()
    requirements = (tmp_path / "model" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert "torch-sirc[onnx,vision]==0.1.0" in requirements
    about = pyfunc().load_model(str(tmp_path / "model")).metadata
    assert about.flavors["python_function"]["loader_module"] == "sirc.deploy.mlflow"
    assert [(column.name, column.type.name) for column in about.signature.inputs] == [("bytes", "binary")]
    assert about.signature.outputs.input_names() == ["accepted", "label", "class", "confidence", "reason", "error"]
    assert about.metadata["promise"] == OnnxGraph(graph).threshold.guarantee
    assert about.metadata["owner"] == "me"


def test_a_run_and_the_registry_keep_the_model(graph, tracking):
    import mlflow

    with mlflow.start_run():
        made = flavour.log_model(graph, registered_model_name="flowers")
    for uri in (made.model_uri, "models:/flowers/1"):
        assert flavour.load_model(uri).threshold == OnnxGraph(graph).threshold
        assert len(pyfunc().load_model(uri).predict(images(3))) == 3


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"data": "../model.onnx"}, "with its graph inside"),
        ({"data": None}, "there is no file"),
        ({"loader_module": "os"}, "must be a model that `save_model` or `log_model` wrote"),
    ],
)
def test_a_model_of_others_is_refused_in_words(graph, tmp_path, told, words):
    import yaml

    flavour.save_model(graph, tmp_path / "model")
    (tmp_path / "model.onnx").write_bytes(graph.read_bytes())
    about = yaml.safe_load((tmp_path / "model" / "MLmodel").read_text(encoding="utf-8"))
    about["flavors"]["python_function"] |= told
    (tmp_path / "model" / "MLmodel").write_text(yaml.safe_dump(about), encoding="utf-8")
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        flavour.load_model(str(tmp_path / "model"))


def test_an_answer_is_json_and_a_question_may_be(graph, tmp_path):
    flavour.save_model(graph, tmp_path / "model")
    model = pyfunc().load_model(str(tmp_path / "model"))
    from mlflow.pyfunc.scoring_server import infer_and_parse_data, predictions_to_json  # warns where it comes first

    rows = [[b64encode(data).decode()] for data in (encoded(0), b"no image")]
    asked = {"dataframe_split": {"columns": ["bytes"], "data": rows}}
    given = infer_and_parse_data(asked, schema=model.metadata.get_input_schema())
    file = io.StringIO()
    predictions_to_json(model.predict(given), file)
    first, broken = json.loads(file.getvalue())["predictions"]
    assert first["class"] in ("red", "green", "blue")
    assert (broken["label"], broken["class"], broken["accepted"]) == (None, None, False)


def test_many_images_are_decided_about_some_at_a_time_and_none_give_none(graph, monkeypatch):
    monkeypatch.setattr(flavour, "_AT_ONCE", 4)
    loaded = flavour._load_pyfunc(str(graph))
    table = images(10)
    table.loc[9, "bytes"] = b""
    found = loaded.predict(table)
    assert found.index.tolist() == list(range(10))
    assert found["error"][9].startswith("image 'row 9'")
    np.testing.assert_allclose(found["confidence"][:9], OnnxGraph(graph)(prepared(9)).confidence, rtol=1e-4)
    assert list(loaded.predict(table[:0])) == list(found)


def test_a_graph_that_prepares_no_images_takes_what_its_network_took(graph, tmp_path):
    plain = described(graph, tmp_path / "plain.onnx", preprocess=None)
    flavour.save_model(plain, tmp_path / "model")
    model = pyfunc().load_model(str(tmp_path / "model"))
    assert (
        "torch-sirc[onnx]==0.1.0" in (tmp_path / "model" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    )
    (tensor,) = model.metadata.signature.inputs
    assert (tensor.type, tensor.shape, tensor.name) == (np.float32, (-1, 3, 16, 16), None)
    found, expected = model.predict(prepared(5)), OnnxGraph(graph)(prepared(5))
    assert list(found) == ["accepted", "label", "class", "confidence", "reason"]
    for name in ("accepted", "label", "confidence"):
        np.testing.assert_array_equal(found[name], getattr(expected, name))
    assert found["class"].tolist() == [["red", "green", "blue"][label] for label in expected.label]


def test_inputs_by_name_keep_their_names():
    pyfunc()
    takes = [OnnxTensor("input_ids", "int64", (None, None)), OnnxTensor("attention_mask", "int64", (None, None))]
    graph = SimpleNamespace(takes=takes, inputs=[one.name for one in takes], takes_images=False)
    schema = flavour._signature(graph).inputs
    assert [(one.name, one.type, one.shape) for one in schema] == [(one.name, np.int64, (-1, -1)) for one in takes]


def test_what_is_no_graph_and_what_is_not_installed_is_told(tmp_path, monkeypatch):
    pyfunc()
    (tmp_path / "other.onnx").write_bytes(b"not a graph")
    with pytest.raises(StoreError, match="must be an ONNX graph as `export_onnx` wrote it"):
        flavour.save_model(tmp_path / "other.onnx", tmp_path / "model")
    assert not (tmp_path / "model").exists()
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "mlflow.pyfunc", raising=False)
    with pytest.raises(ImportError, match=r"an MLflow model needs mlflow: pip install 'torch-sirc\[mlflow\]'"):
        flavour.save_model(tmp_path / "other.onnx", tmp_path / "model")
