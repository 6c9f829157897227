"""The exported graph decides as the module does, for any batch, and says what it was calibrated for."""

import json

import numpy as np
import pytest
import timm
import torch
from torch import nn

import sirc
from sirc import SelectiveClassifier
from sirc.data.preprocess import Preprocess
from sirc.deploy import onnx as _onnx
from sirc.deploy.selective import LOWEST, ConfidenceGraph
from support import tiny_selective

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

SIDE, K = 32, 7
ARCHITECTURES = {
    "resnet18": {},
    "mobilenetv3_small_050": {},
    "vit_tiny_patch16_224": {"img_size": SIDE},
}
CASES = [
    ("resnet18", "sirc(entropy, residual)"),
    ("resnet18", "sirc(msp, l1, knn)"),
    ("mobilenetv3_small_050", "sirc(doctor, mahalanobis)"),
    ("vit_tiny_patch16_224", "vim"),
]
SMALL = "sirc(msp, l1)"


def images(n, seed):
    return torch.randn(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


class Network:
    """A network with outputs on training and validation images."""

    def __init__(self, name, model):
        self.model = model.eval()
        self.head = sirc.find_head(model, images(2, 0))
        self.val = self.outputs(images(48, 2))
        specs = [spec for own, spec in CASES if own == name]
        self.scorer = sirc.fit([*specs, SMALL], self.training(), head=self.head, crossfit=0)

    def training(self):
        """More rows than there are images: features like those of the validation images, through the last layer."""
        seen, g = self.val.features, torch.Generator().manual_seed(0)
        features = seen.mean(0) + seen.std(0) * torch.randn(2500, seen.shape[1], generator=g)
        logits = features @ self.head.weight.T + self.head.bias
        return sirc.Outputs(logits, features, logits.argmax(-1))

    def outputs(self, x):
        with torch.no_grad(), sirc.models.capture_features(self.model, self.head.name) as take:
            logits = self.model(x)
            features = take()
        labels = torch.where(torch.arange(len(x)) % 4 > 0, logits.argmax(-1), (logits.argmax(-1) + 1) % K)
        return sirc.Outputs(logits, features, labels)

    def selective(self, spec, **options):
        made = SelectiveClassifier(self.model, self.scorer, spec, head=self.head, **options)
        return made.calibrate(self.val, recall=0.8)


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    return {
        name: Network(name, timm.create_model(name, num_classes=K, **options))
        for name, options in ARCHITECTURES.items()
    }


def test_a_graph_never_accepts_what_it_cannot_compute(graph):
    x = np.random.default_rng(0).normal(size=(4, 3, tiny_selective.SIDE, tiny_selective.SIDE)).astype(np.float32)
    x[1] *= 1e30
    x[2] = np.nan
    found = _onnx.OnnxModel(graph)(x)
    assert np.isfinite(found.confidence).all()
    assert (found.confidence == LOWEST).tolist() == [False, True, True, False]
    assert not found.accepted[1:3].any()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "spec"), CASES)
def test_the_graph_decides_as_the_module_does(networks, name, spec, tmp_path):
    selective = networks[name].selective(spec)
    selective.export_onnx(tmp_path / "m.onnx", images(4, 3))
    onnx.checker.check_model(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [output.name for output in session.get_outputs()] == ["label", "confidence", "accepted", "logits"]
    for n in (1, 2, 33):
        x = images(n, 10 + n)
        expected = selective(x)
        label, confidence, accepted, logits = session.run(None, {"images": x.numpy()})
        assert [value.dtype for value in (label, confidence, accepted)] == [np.int64, np.float64, np.bool_]
        np.testing.assert_allclose(logits, expected.logits, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(confidence, expected.confidence, rtol=1e-4, atol=1e-4)
        away = np.abs(expected.confidence.numpy() - selective.threshold.value) > 1e-3
        np.testing.assert_array_equal(accepted[away], expected.accepted.numpy()[away])
        sure = (expected.logits.topk(2).values.diff().abs()[:, 0] > 1e-3).numpy()
        np.testing.assert_array_equal(label[sure], expected.label.numpy()[sure])


class Scaled(nn.Module):
    """A network of inputs that are logits already, and their own features."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        with torch.no_grad():
            self.fc.weight.copy_(torch.eye(4))
            self.fc.bias.zero_()

    def forward(self, x):
        return self.fc(x.flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["msp", "doctor", "entropy", "sirc(entropy, l1)"])
def test_confident_inputs_do_not_tie_in_the_graph(spec, tmp_path):
    gaps = torch.tensor([0.0, 1e-3, 1.0, 20.0, 34.0, 36.0, 38.0, 90.0, 499.0, 500.0])
    x = torch.stack([gaps, *3 * [torch.zeros(10)]], -1)[:, :, None]
    scorer = sirc.fit(spec, sirc.Outputs(torch.randn(50, 4), torch.randn(50, 4)), crossfit=0)
    selective = SelectiveClassifier(Scaled(), scorer, spec, head="fc").set_threshold(1.0)
    selective.export_onnx(tmp_path / "m.onnx", x)
    confidence = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["confidence"], {"images": x.numpy()})[0]
    np.testing.assert_allclose(confidence, selective(x).confidence, rtol=1e-7, atol=1e-7)
    assert (np.diff(confidence) > 0).all()


class Several(nn.Module):
    """Many confidences of the same logits and features, in one graph."""

    def __init__(self, pairs):
        super().__init__()
        self.graphs = nn.ModuleList(ConfidenceGraph(scorer, spec, torch.float64) for scorer, spec in pairs)

    def forward(self, logits, features):
        return tuple(graph(logits, features) for graph in self.graphs)


TUNED = (
    *(
        "margin",
        "tempered_msp",
        "max_logit_pnorm",
        "gen(m=3)",
        "sirc(max_logit_pnorm, nnguide)",
        "react",
        "scale",
        "ash",
    ),
    *("fdbd", "cop", "sirc(tempered_entropy, l1, budget=1)", "additive(msp, l1, mahalanobis_pp, kappa=0.3)"),
    *("bayes(gen, l1)", "bayes(msp, l1, nci, alpha=0.3, metric=aurr)", "linear(l1, relative_mahalanobis, c=0.1)"),
)


@pytest.fixture(scope="module")
def several():
    """Scorers of tuned and learnt combinations, and rows to score. Features lie far from 0: b·a is large."""
    g = torch.Generator().manual_seed(0)
    head = sirc.Head(torch.randn(5, 12, generator=g, dtype=torch.float64), torch.zeros(5))

    def outputs(n, spread):
        z = 1000 + spread * torch.randn(n, 12, generator=g, dtype=torch.float64)
        logits = (z - 1000) @ head.weight.T
        noisy = logits + torch.randn(n, 5, generator=g, dtype=torch.float64)
        return sirc.Outputs(logits, z, noisy.argmax(-1))

    train, val, ood = outputs(400, 0.5), outputs(300, 0.5), outputs(200, 0.8)
    surrogate = sirc.fit(list(TUNED), train, head=head, val=val)
    surrogate.parameters["max_logit_pnorm"] = {"p": torch.tensor([0.0]), "p_bounded": torch.tensor([3.0])}
    learnt = sirc.fit([spec for spec in TUNED if spec.startswith("bayes")], train, head=head, val=val, ood=ood)
    return [(scorer, spec) for scorer in (surrogate, learnt) for spec in scorer.specs], outputs(40, 0.8)


@pytest.mark.slow
def test_tuned_and_learnt_scores_keep_their_digits_in_a_graph(several):
    pairs, rows = several
    assert pairs[0][0].parameters["sirc(tempered_entropy, l1, budget=1.0)"]["a"] > 1e4
    batch = torch.export.Dim("batch")
    with _onnx._quiet(), torch.no_grad():
        traced = torch.export.export(
            Several(pairs).eval(), (rows.logits, rows.features), dynamic_shapes=({0: batch}, {0: batch})
        )
        names = {"input_names": ["logits", "features"], "output_names": [f"c{i}" for i in range(len(pairs))]}
        program = torch.onnx.export(traced, dynamo=True, verbose=False, optimize=True, **names)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    for n in (1, 2, 33):
        some = rows[:n]
        exported = traced.module()(some.logits, some.features)
        found = session.run(None, {"logits": some.logits.numpy(), "features": some.features.numpy()})
        for (scorer, spec), plain, confidence in zip(pairs, exported, found, strict=True):
            expected = scorer(some)[spec]
            torch.testing.assert_close(plain, expected, rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(confidence, expected, rtol=1e-6, atol=1e-6, err_msg=spec)


@pytest.mark.slow
def test_the_file_says_what_was_calibrated(networks, tmp_path):
    selective = networks["resnet18"].selective(
        "sirc(entropy, residual)", classes=[f"class {i}" for i in range(K)], preprocess=Preprocess(resize=40, crop=SIDE)
    )
    selective.export_onnx(tmp_path / "m.onnx", images(2, 4))
    facts = _onnx.facts_of(onnxruntime.InferenceSession(tmp_path / "m.onnx"))
    assert facts["spec"] == "sirc(entropy, residual)"
    assert facts["threshold"] == json.loads(json.dumps(selective.threshold.to_dict()))
    assert facts["classes"][3] == "class 3"
    assert facts["preprocess"]["crop"] == SIDE
    assert facts["model"] == sirc.models.fingerprint(selective.model)


@pytest.mark.slow
def test_what_a_graph_says_cannot_be_changed(tmp_path):
    selective = SelectiveClassifier(Scaled(), sirc.Scorer("msp", num_classes=4), "msp").set_threshold(0.5)
    selective.export_onnx(tmp_path / "m.onnx", torch.randn(1, 4, 1))
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert _onnx.facts_of(session)["head"] == "fc"
    assert session.run(None, {"images": np.zeros((5, 4, 1), np.float32)})[0].shape == (5,)
    graph = onnx.load(tmp_path / "m.onnx")
    for entry in graph.metadata_props:
        entry.value = entry.value.replace('"value": 0.5', '"value": 0.1')
    with pytest.raises(sirc.StoreError, match="changed after"):
        _onnx.facts_of(onnxruntime.InferenceSession(graph.SerializeToString()))


@pytest.mark.slow
def test_nothing_is_overwritten_or_half_written(networks, tmp_path):
    selective = networks["resnet18"].selective(SMALL)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="overwrite"):
        selective.export_onnx(path, images(2, 5))
    assert path.read_bytes() == b"precious"
    selective.export_onnx(path, images(1, 5), overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.slow
def test_nonsense_is_refused(networks, tmp_path):
    network = networks["resnet18"]
    bare = SelectiveClassifier(network.model, network.scorer, SMALL, head=network.head)
    with pytest.raises(sirc.NotFittedError, match="calibrate"):
        bare.export_onnx(tmp_path / "m.onnx", images(2, 6))
    with pytest.raises(ValueError, match="example"):
        network.selective(SMALL).export_onnx(tmp_path / "m.onnx", "an image")
    assert not (tmp_path / "m.onnx").exists()
    bf16 = SelectiveClassifier(Scaled().bfloat16(), sirc.Scorer("msp"), "msp", head="fc").set_threshold(0.0)
    with pytest.raises(ValueError, match="bfloat16"):
        bf16.export_onnx(tmp_path / "m.onnx", torch.randn(2, 4, 1).bfloat16())
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "other", value[:1], value[1:])
    other = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(ValueError, match="export_onnx"):
        _onnx.facts_of(onnxruntime.InferenceSession(other.SerializeToString()))
