"""Triton's configuration has the names, types and shapes of the graph; the recipes of the page are right for one."""

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from sirc.deploy import SelectiveClassifier, write_triton
from sirc.deploy.onnx import OnnxGraph, OnnxTensor
from sirc.deploy.triton import _described
from sirc.errors import StoreError
from support.pages import ROOT, blocks_of
from support.tiny_selective import NETWORK, calibrated

PAGE = ROOT / "docs" / "hosting.md"
CODES = {"BOOL": np.bool_, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
# Of Triton's ModelConfig the fields that are written here, with the numbers of its model_config.proto.
FIELDS = {
    "Reshape": [("shape", 1, "int64*")],
    "Tensor": [("name", 1, "string"), ("data_type", 2, "Type"), ("dims", 4, "int64*"), ("reshape", 5, "Reshape")],
    "Output": [("name", 1, "string"), ("data_type", 2, "Type"), ("dims", 3, "int64*"), ("reshape", 5, "Reshape")],
    "Batching": [],
    "ModelConfig": [
        ("name", 1, "string"),
        ("backend", 17, "string"),
        ("max_batch_size", 4, "int32"),
        ("input", 5, "Tensor*"),
        ("output", 6, "Output*"),
        ("dynamic_batching", 11, "Batching"),
    ],
}


def parsed(text):
    """A config.pbtxt, by the real grammar of such files; a field that Triton does not know is an error."""
    file = descriptor_pb2.FileDescriptorProto(name="triton.proto", package="triton", syntax="proto3")
    kinds = file.enum_type.add(name="Type")
    for number, name in enumerate(["INVALID", *CODES]):
        kinds.value.add(name=f"TYPE_{name}", number=number)
    for message, fields in FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind in fields:
            field = made.field.add(name=name, number=number, label=3 if kind.endswith("*") else 1)
            kind = kind.rstrip("*")
            field.type = {"int64": 3, "int32": 5, "string": 9, "Type": 14}.get(kind, 11)
            if field.type in (11, 14):
                field.type_name = f".triton.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    config = message_factory.GetMessageClass(pool.FindMessageTypeByName("triton.ModelConfig"))()
    return text_format.Parse(text, config)


def tensors(config):
    """The inputs and outputs by name: type, and shape as the graph has it."""

    def shape(one):
        return [None, *(one.reshape.shape if one.HasField("reshape") else (None if x == -1 else x for x in one.dims))]

    names = config.DESCRIPTOR.file.enum_types_by_name["Type"].values_by_number.values()
    code = {kind.number: kind.name.removeprefix("TYPE_") for kind in names}
    return [
        {one.name: (np.dtype(CODES[code[one.data_type]]), shape(one)) for one in side}
        for side in (config.input, config.output)
    ]


def of_graph(path):
    session = onnxruntime.InferenceSession(path)
    kinds = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(int64)": "int64", "tensor(bool)": "bool"}
    return [
        {
            one.name: (np.dtype(kinds[one.type]), [side if isinstance(side, int) else None for side in one.shape])
            for one in side
        }
        for side in (session.get_inputs(), session.get_outputs())
    ]


@pytest.mark.slow
def test_the_configuration_has_what_the_graph_takes_and_gives(graph, tmp_path):
    place = write_triton(graph, tmp_path / "models" / "flowers", max_batch_size=8)
    assert (place / "1" / "model.onnx").read_bytes() == graph.read_bytes()
    config = parsed((place / "config.pbtxt").read_text(encoding="utf-8"))
    assert (config.name, config.backend, config.max_batch_size) == ("flowers", "onnxruntime", 8)
    assert config.HasField("dynamic_batching")
    assert all(one.dims for one in (*config.input, *config.output))  # Triton refuses a tensor without dimensions
    assert tensors(config) == of_graph(graph)
    OnnxGraph(place / "1" / "model.onnx")
    with pytest.raises(FileExistsError, match=r"models/flowers' exists already"):
        write_triton(graph, place)
    write_triton(graph, place, overwrite=True)
    assert parsed((place / "config.pbtxt").read_text(encoding="utf-8")).max_batch_size == 64


def test_sizes_that_vary_are_left_open():
    text = _described(OnnxTensor("input_ids", "int64", (None, None)))
    assert text == '  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }'


def test_what_cannot_be_served_is_told(tmp_path):
    (tmp_path / "other.onnx").write_bytes(b"not a graph")
    with pytest.raises(StoreError, match="must be an ONNX graph as `export_onnx` wrote it"):
        write_triton(tmp_path / "other.onnx", tmp_path / "flowers")
    with pytest.raises(ValueError, match="`max_batch_size` must be a whole number ≥ 1"):
        write_triton(tmp_path / "other.onnx", tmp_path / "flowers", max_batch_size=0)
    assert not (tmp_path / "flowers").exists()


@pytest.mark.slow
def test_a_command_writes_the_folder_beside_the_graph(graph, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("of_the_command.py").write_text(NETWORK, encoding="utf-8")
    calibrated().save("guard.safetensors")
    write = lambda self, path, example, **_: shutil.copy(graph, path)  # noqa: E731 - exporting takes seconds
    monkeypatch.setattr(SelectiveClassifier, "export_onnx", write)
    words = ("export", "of_the_command:network", "--model", "guard.safetensors", "--triton", "models/flowers")
    code, out, err = command(*words)
    assert code == 0, err
    assert out.splitlines()[-1] == "models/flowers"
    assert tensors(parsed(Path("models/flowers/config.pbtxt").read_text(encoding="utf-8"))) == of_graph("model.onnx")
    Path("model.onnx").unlink()
    code, _, err = command(*words)
    assert (code, Path("model.onnx").exists()) == (1, False)
    assert "'models/flowers' exists already. Pass `--overwrite` to replace it." in err


@pytest.mark.slow
def test_the_recipes_of_the_page_are_right_for_a_graph(graph):
    (text,) = blocks_of(PAGE, "pbtxt")
    config = parsed(text)
    for shown, there in zip(tensors(config), of_graph(graph), strict=True):
        assert shown == there
    (text,) = blocks_of(PAGE, "yaml")
    service = yaml.safe_load(text)
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert service["metadata"]["name"] == config.name
    model = service["spec"]["predictor"]["model"]
    assert model["modelFormat"] == {"name": "triton"}
    assert (model["runtime"], model["protocolVersion"]) == ("kserve-tritonserver", "v2")
    assert f'write_triton("model.onnx", "{model["storageUri"].rpartition("/")[2]}/{config.name}")' in PAGE.read_text(
        encoding="utf-8"
    )
    assert {"name": "NVIDIA_TF32_OVERRIDE", "value": "0"} in model["env"]
    assert f"/v2/models/{config.name}/infer" in PAGE.read_text(encoding="utf-8")
