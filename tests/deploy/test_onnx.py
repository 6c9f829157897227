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
from sirc.deploy.confidence_graph import LOWEST, ConfidenceGraph
from support import tiny_selective
from support.tiny_selective import prepared

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

SIDE, K = 32, 7
CASES = {"test_resnet": "sirc(entropy, residual)", "test_efficientnet": "sirc(doctor, mahalanobis)", "test_vit": "vim"}
SMALL = "sirc(msp, l1)"


def images(n, seed):
    return torch.randn(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


class Network:
    """A network with outputs on training and validation images."""

    def __init__(self, name, model):
        self.model = model.eval()
        self.head = sirc.find_head(model, images(2, 0))
        self.val = self.outputs(images(48, 2))
        self.scorer = sirc.fit([CASES[name], SMALL], self.training(), head=self.head)

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
    sizes = {"test_vit": {"img_size": SIDE}}
    return {name: Network(name, timm.create_model(name, num_classes=K, **sizes.get(name, {}))) for name in CASES}


@pytest.mark.slow
def test_a_graph_never_accepts_what_it_cannot_compute(graph):
    x = np.random.default_rng(0).normal(size=(4, 3, tiny_selective.SIDE, tiny_selective.SIDE)).astype(np.float32)
    x[1] *= 1e30
    x[2] = np.nan
    found = _onnx.OnnxModel(graph)(x)
    assert np.isfinite(found.confidence).all()
    assert (found.confidence == LOWEST).tolist() == [False, True, True, False]
    assert not found.accepted[1:3].any()


@pytest.mark.slow
def test_a_graph_takes_tensors_and_says_in_words_what_it_does_not_take(graph):
    model, x = _onnx.OnnxModel(graph), torch.randn(2, 3, tiny_selective.SIDE, tiny_selective.SIDE)
    np.testing.assert_array_equal(model(x.requires_grad_()).confidence, model(x.detach().numpy()).confidence)
    for wrong, words in (
        (x.double(), "`images` must be float32, as the model took it; got float64"),
        (x.bfloat16(), "must be float32, as the model took it; got bfloat16"),
        (
            x.detach().numpy()[0],
            r"`images` must have the shape \(n, 3, 16, 16\), a row for each input; got \(3, 16, 16\)",
        ),
        (x[:, :2], r"must have the shape \(n, 3, 16, 16\)"),
        ("photo.jpg", "`images` must be an array of numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            model(wrong)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "spec"), CASES.items())
def test_the_graph_decides_as_the_module_does(networks, name, spec, tmp_path):
    selective = networks[name].selective(spec)
    selective.export_onnx(tmp_path / "m.onnx", images(4, 3))
    onnx.checker.check_model(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [output.name for output in session.get_outputs()] == [
        *("label", "confidence", "accepted", "logits", "reason")
    ]
    graph, told = _onnx.OnnxGraph(tmp_path / "m.onnx"), set()
    np.testing.assert_array_equal(graph.calibration, selective.calibration)
    for n in (1, 2, 33):
        x = images(n, 10 + n)
        expected = selective(x)
        label, confidence, accepted, logits, _ = session.run(None, {"images": x.numpy()})
        assert [value.dtype for value in (label, confidence, accepted)] == [np.int64, np.float64, np.bool_]
        np.testing.assert_allclose(logits, expected.logits, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(confidence, expected.confidence, rtol=1e-4, atol=1e-4)
        away = np.abs(expected.confidence.numpy() - selective.threshold.value) > 1e-3
        np.testing.assert_array_equal(accepted[away], expected.accepted.numpy()[away])
        sure = (expected.logits.topk(2).values.diff().abs()[:, 0] > 1e-3).numpy()
        np.testing.assert_array_equal(label[sure], expected.label.numpy()[sure])
        reasons = np.array(graph.explain(x)[1])
        np.testing.assert_array_equal(reasons[away], np.array(selective.explain(x)[1])[away])
        told |= set(reasons)
    assert told > {""}


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


class Several(nn.Module):
    """Many confidences of the same logits and features, in one graph."""

    def __init__(self, pairs, dtype=torch.float64):
        super().__init__()
        self.graphs = nn.ModuleList(ConfidenceGraph(scorer, spec, dtype) for scorer, spec in pairs)

    def forward(self, logits, features):
        return tuple(graph(logits, features) for graph in self.graphs)

    def exported(self, rows):
        """What torch and ONNX make of it."""
        batch = torch.export.Dim("batch")
        with _onnx._exporting(self):
            traced = torch.export.export(
                self.eval(), (rows.logits, rows.features), dynamic_shapes=({0: batch}, {0: batch})
            )
            names = {"input_names": ["logits", "features"], "output_names": [f"c{i}" for i in range(len(self.graphs))]}
            program = torch.onnx.export(traced, dynamo=True, verbose=False, optimize=True, **names)
        return traced.module(), onnxruntime.InferenceSession(program.model_proto.SerializeToString())


@pytest.mark.slow
def test_confident_inputs_do_not_tie_in_the_graph(tmp_path):
    gaps = torch.tensor([0.0, 1e-3, 1.0, 20.0, 34.0, 36.0, 38.0, 90.0, 499.0, 500.0])
    x = torch.stack([gaps, *3 * [torch.zeros(10)]], -1)[:, :, None]
    specs = ["msp", "doctor", "entropy", "sirc(entropy, l1)"]
    scorer = sirc.fit(specs, sirc.Outputs(torch.randn(50, 4), torch.randn(50, 4)), crossfit=0)
    chosen = {spec: SelectiveClassifier(Scaled(), scorer, spec, head="fc").set_threshold(1.0) for spec in specs}
    logits = x[:, :, 0]
    _, session = Several([(scorer, spec) for spec in specs], torch.float32).exported(sirc.Outputs(logits, logits))
    found = dict(zip(specs, session.run(None, {"logits": logits.numpy(), "features": logits.numpy()}), strict=True))
    chosen[specs[-1]].export_onnx(tmp_path / "m.onnx", x)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    found["exported"] = session.run(["confidence"], {"images": x.numpy()})[0]
    chosen["exported"] = chosen[specs[-1]]
    for spec, confidence in found.items():
        np.testing.assert_allclose(confidence, chosen[spec](x).confidence, rtol=1e-7, atol=1e-7, err_msg=spec)
        assert (np.diff(confidence) > 0).all(), spec


TUNED = ["margin", "tempered_msp", "max_logit_pnorm", "gen(m=3)", "delta_knn(k=3)", "both(msp, mahalanobis)"]
TUNED += ["sirc(tempered_entropy, l1, budget=1)", "additive(msp, l1, mahalanobis_pp, kappa=0.3)", "sirc(msp, l1, knn)"]
TUNED += ["bayes(msp, l1, nci, alpha=0.3, metric=aurr)", "linear(l1, relative_mahalanobis, c=0.1)"]


@pytest.fixture(scope="module")
def several():
    """Scorers of tuned and learnt combinations, and rows to score. Features lie far from 0: b·a is large."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 12, generator=g, dtype=torch.float64)
    head = sirc.Head(weight, -1000 * weight.sum(1))

    def outputs(n, spread):
        z = 1000 + spread * torch.randn(n, 12, generator=g, dtype=torch.float64)
        logits = (z - 1000) @ weight.T
        noisy = logits + torch.randn(n, 5, generator=g, dtype=torch.float64)
        return sirc.Outputs(logits, z, noisy.argmax(-1))

    train, val, ood = outputs(400, 0.5), outputs(300, 0.5), outputs(200, 0.8)
    surrogate = sirc.fit(TUNED, train, head=head, val=val)
    surrogate.parameters["max_logit_pnorm"] = {"p": torch.tensor([0.0]), "p_bounded": torch.tensor([3.0])}
    learnt = sirc.fit("bayes(gen, l1)", train, head=head, val=val, ood=ood)
    with pytest.warns(sirc.errors.DataWarning, match="`scod` uses fewer witnesses"):
        reduced = sirc.fit("scod", sirc.Outputs(train.logits, train.features))
    return [(scorer, spec) for scorer in (surrogate, learnt, reduced) for spec in scorer.specs], outputs(40, 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))  # the time to simplify a graph grows with the square of its size
def test_tuned_and_learnt_scores_keep_their_digits_in_a_graph(several, part):
    pairs, rows = several
    assert pairs[0][0].parameters["sirc(tempered_entropy, l1, budget=1.0)"]["a"] > 1e4
    pairs = pairs[part::2]
    traced, session = Several(pairs).exported(rows)
    for n in (1, 2, 33):
        some = rows[:n]
        exported = traced(some.logits, some.features)
        found = session.run(None, {"logits": some.logits.numpy(), "features": some.features.numpy()})
        for (scorer, spec), plain, confidence in zip(pairs, exported, found, strict=True):
            expected = scorer(some)[spec]
            torch.testing.assert_close(plain, expected, rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(confidence, expected, rtol=1e-6, atol=1e-6, err_msg=spec)


class Explaining(nn.Module):
    """The reasons of several scores, of the same logits and features, in one graph."""

    def __init__(self, pairs, rows):
        super().__init__()
        self.graphs = nn.ModuleList(ConfidenceGraph(scorer, spec, torch.float64) for scorer, spec in pairs)
        for graph in self.graphs:
            graph.limit.fill_(float(graph(rows.logits, rows.features).quantile(0.7)))

    def forward(self, logits, features):
        return tuple(graph.explain(logits, features)[-1] for graph in self.graphs)


@pytest.mark.slow
def test_the_reasons_in_a_graph_are_those_of_the_module(several):
    pairs, rows = several
    wanted = {"sirc(msp, l1, knn)", "both(msp, mahalanobis)", "margin", "bayes(gen, l1)"}
    made = Explaining([(scorer, spec) for scorer, spec in pairs if spec in wanted], rows).eval()
    features = rows.features.clone()
    features[3] = torch.nan
    batch = torch.export.Dim("batch")
    with _onnx._exporting(made):
        names = {"input_names": ["logits", "features"], "output_names": [f"r{i}" for i in range(len(made.graphs))]}
        shapes = {"dynamic_shapes": ({0: batch}, {0: batch})}
        program = torch.onnx.export(made, (rows.logits, features), dynamo=True, verbose=False, **names, **shapes)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    found = session.run(None, {"logits": rows.logits.numpy(), "features": features.numpy()})
    expected = made(rows.logits, features)
    seen = {}
    for graph, numbers, eager in zip(made.graphs, found, expected, strict=True):
        np.testing.assert_array_equal(numbers, eager, err_msg=str(graph.spec))
        seen[str(graph.spec)] = {graph.reasons[number] for number in numbers}
        assert graph.reasons[numbers[3]] == ("not computable" if graph.needs_features else graph.reasons[eager[3]])
    assert seen.keys() == wanted
    assert {"", "softmax"} <= seen["sirc(msp, l1, knn)"]
    assert {"l1", "knn"} & seen["sirc(msp, l1, knn)"]
    assert seen["both(msp, mahalanobis)"] == {"", "not computable", "both(msp, mahalanobis)"}
    assert seen["margin"] == {"", "softmax"}


@pytest.mark.slow
def test_the_file_says_what_was_calibrated(tmp_path):
    selective = SelectiveClassifier(
        Scaled(),
        sirc.Scorer("msp", num_classes=4),
        "msp",
        classes=[f"class {i}" for i in range(4)],
        preprocess=Preprocess(resize=40, crop=SIDE),
    )
    val = torch.randn(48, 4, generator=torch.Generator().manual_seed(2))
    selective.calibrate(sirc.Outputs(val, val, torch.arange(48) % 4), recall=0.8)
    selective.export_onnx(tmp_path / "m.onnx", torch.randn(2, 4, 1))
    facts = _onnx._facts_of(onnxruntime.InferenceSession(tmp_path / "m.onnx"), sealed=True)
    assert facts["spec"] == "msp"
    assert facts["threshold"] == json.loads(json.dumps(selective.threshold.to_dict()))
    assert facts["classes"][3] == "class 3"
    assert facts["preprocess"]["crop"] == SIDE
    assert facts["model"] == sirc.models.fingerprint(selective.model)
    assert b".py" not in (tmp_path / "m.onnx").read_bytes()  # no paths of the machine that exported it


def mutants(graph, count):
    """Copies of a file with random damage: to its bytes, or to one of its fields, as an editor of graphs would do."""
    random = np.random.default_rng(0)
    whole = graph.read_bytes()
    for number in range(count):
        if number % 2:
            yield f"bytes, {number}", damaged(whole, random)
        else:
            model = onnx.load_from_string(whole)
            what = edited(model, random, number // 2 % 8)
            yield f"{what}, {number}", model.SerializeToString()


def damaged(whole, random):
    start = int(random.integers(len(whole)))
    stop = start + int(random.integers(1, 60))
    piece = whole[start:stop]
    return [
        whole[:start] + bytes([whole[start] ^ 1 << random.integers(8)]) + whole[start + 1 :],
        whole[:start] + random.bytes(len(piece)) + whole[stop:],
        whole[:start] + whole[stop:],
        whole[:stop] + piece + whole[stop:],
        whole[:start],
        whole + random.bytes(stop - start),
    ][random.integers(6)]


def edited(model, random, kind):
    tensor, node = random.choice(model.graph.initializer), random.choice(model.graph.node)
    if kind < 3:
        values = onnx.numpy_helper.to_array(tensor).copy()
        place = random.integers(max(values.size, 1))
        values.reshape(-1)[place : place + 1] += 1 if values.dtype != bool else True
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        return f"a weight of {tensor.name}"
    if kind == 3:
        names = [node.op_type, "Neg", "Sub", "Identity"]
        node.op_type = names[random.integers(1, 4)]
        return f"the operator of {node.name}"
    if kind == 4:
        model.graph.output[0].name, model.graph.output[1].name = "logits", "label"
        return "the order of the outputs"
    if kind == 5:
        model.graph.node.remove(node)
        return f"without {node.name}"
    if kind == 6:
        entry = random.choice([entry for entry in model.metadata_props if entry.key == "sirc"])
        entry.value = entry.value.replace('"value": ', '"value": 1', 1).replace('"red"', '"blue"')
        return "the threshold and the classes that it tells"
    model.metadata_props[-1].value = random.bytes(32).hex()
    return "the digest"


@pytest.mark.slow
def test_a_file_that_was_changed_is_refused_or_decides_the_same(graph, tmp_path, attack):
    x = prepared(40)
    expected = _onnx.OnnxModel(graph)(x)
    assert len(set(expected.accepted)) == 2
    path, refusals, trials = tmp_path / "m.onnx", [], attack.trials(160)
    for what, data in mutants(graph, trials):
        path.write_bytes(data)
        try:
            found = _onnx.OnnxModel(path)(x)
        except sirc.StoreError as error:
            refusals.append(str(error))
        else:
            for got, want in zip(found, expected, strict=True):
                np.testing.assert_array_equal(got, want, err_msg=what)
    assert len(refusals) > 0.9 * trials
    for text in refusals:
        assert text.startswith(f"'{path}' must be an ONNX graph as `export_onnx` wrote it: ")
        assert text.endswith(". Export it again.")
    attack.tried("changed ONNX files", trials, "refused, or the same decisions")


@pytest.mark.slow
def test_weights_moved_into_another_file_are_refused(graph, tmp_path):
    apart = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(onnx.load(graph), tmp_path / "m.onnx", **apart)
    with pytest.raises(sirc.StoreError, match="its digest shows"):
        _onnx.OnnxModel(tmp_path / "m.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("predict", "photos", "--onnx"), ("serve",)])
def test_the_commands_refuse_a_changed_file(graph, tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sirc.deploy.serve.run", lambda *_, **__: pytest.fail("it serves"))
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "m.onnx").write_bytes(data)
    code, out, err = command(*words, "m.onnx")
    assert (code, out) == (1, "")
    assert "error: 'm.onnx' must be an ONNX graph as `export_onnx` wrote it: its digest shows" in err


def sealed(model):
    """A graph as someone who knows the format would write it: whatever it says, its digest is right."""
    entries = [entry for entry in model.metadata_props if entry.key != _onnx._SEAL.decode()]
    del model.metadata_props[:]
    model.metadata_props.extend(entries)
    data = model.SerializeToString()
    return data + _onnx._seal(data)


def test_weights_outside_of_the_file_are_not_read_even_with_the_right_digest(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = onnx.load(graph)
    tensor = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    (tmp_path / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    (tmp_path / "m.onnx").write_bytes(sealed(model))
    with pytest.raises(sirc.StoreError, match="onnxruntime cannot run it"):
        _onnx.OnnxModel("m.onnx")


FORGED = [
    ({"classes": 5}, "its class names must be a list of texts"),
    ({"classes": ["red", None, "blue"]}, "its class names must be a list of texts"),
    ({"classes": ["red"]}, "it must name each of its 3 classes; it has 1 names"),
    ({"preprocess": 5}, "`preprocess` must be a JSON object; got int"),
    ({"preprocess": {"crop": 10**6}}, "`crop` must be at most 13,377 pixels a side; got 1000000"),
    ({"preprocess": {"std": 5}}, "`std` must be three numbers above 0"),
    ({"quantiles": 5}, "not iterable"),
    ({"threshold": None}, "a stored threshold must have exactly the fields"),
]


@pytest.mark.parametrize(("forged", "words"), FORGED)
def test_what_a_graph_says_of_itself_is_checked_though_its_digest_is_right(graph, tmp_path, forged, words):
    model = onnx.load(graph)
    (entry,) = (entry for entry in model.metadata_props if entry.key == "sirc")
    entry.value = json.dumps({**json.loads(entry.value), **forged})
    (tmp_path / "m.onnx").write_bytes(sealed(model))
    with pytest.raises(sirc.StoreError, match=words):
        _onnx.OnnxModel(tmp_path / "m.onnx")


def test_a_model_that_cannot_be_traced_is_told_in_one_line(tmp_path):
    class Drawn(nn.Module):
        def forward(self, x):
            return x[:, :3] + torch.randn(3, generator=torch.Generator().manual_seed(0))

    selective = SelectiveClassifier(Drawn(), sirc.Scorer("msp", num_classes=3), "msp").set_threshold(0.5)
    with pytest.raises(ValueError, match=r"torch cannot trace Drawn \(") as told:
        selective.export_onnx(tmp_path / "m.onnx", torch.randn(2, 4))
    assert "\n" not in str(told.value)
    assert not any(tmp_path.iterdir())


def test_a_function_that_onnxruntime_lacks_is_told_in_one_line(scratch_registry, tmp_path):
    @sirc.score(needs="logits")
    def soft(logits):
        return torch.nn.functional.softplus(logits.double()).sum(-1)

    selective = SelectiveClassifier(Scaled(), sirc.Scorer("soft", num_classes=4), "soft").set_threshold(0.5)
    with pytest.raises(ValueError, match=r"onnxruntime cannot run it \(.*Softplus.* with other functions") as told:
        selective.export_onnx(tmp_path / "m.onnx", torch.randn(2, 4))
    assert "\n" not in str(told.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_nothing_is_overwritten_or_half_written(tmp_path):
    selective = SelectiveClassifier(Scaled(), sirc.Scorer("msp", num_classes=4), "msp").set_threshold(0.5)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="overwrite"):
        selective.export_onnx(path, torch.randn(2, 4, 1))
    assert path.read_bytes() == b"precious"
    selective.export_onnx(path, torch.randn(1, 4, 1), overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.slow
def test_nonsense_is_refused(networks, tmp_path):
    network = networks["test_resnet"]
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
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(sirc.StoreError, match=r"other\.onnx.*does not say how it was calibrated"):
        _onnx.OnnxModel(tmp_path / "other.onnx")


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.classifier = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        return {"logits": self.classifier((self.embed(input_ids) * mask).sum(1) / mask.sum(1))}


@pytest.fixture
def sentences():
    """A classifier of sentences, and a batch as its loader gives it."""
    torch.manual_seed(0)
    scorer = sirc.Scorer("msp", num_classes=3)
    ids = torch.randint(0, 50, (6, 7))
    mask = (torch.rand(6, 7) < 0.5).long().index_fill(1, torch.tensor(0), 1)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 3}
    return SelectiveClassifier(Sentences().eval(), scorer, "msp").set_threshold(0.4), batch


def test_inputs_are_given_as_a_dict_or_by_name(sentences):
    selective, batch = sentences
    logits = selective.model(batch["input_ids"], batch["attention_mask"])["logits"]
    for found in (selective(batch), selective(**batch)):
        torch.testing.assert_close(found.logits, logits)
        torch.testing.assert_close(found.confidence, selective.scorer(sirc.Outputs(logits.detach()))["msp"])
    with pytest.raises(ValueError, match=r"`sel\(\*\*batch\)`; got neither"):
        selective()
    with pytest.raises(ValueError, match=r"`sel\(\*\*batch\)`; got both"):
        selective(batch, labels=batch["labels"])


@pytest.mark.slow
def test_a_graph_of_inputs_by_name_decides_as_the_module_does(sentences, tmp_path):
    selective, batch = sentences
    path = tmp_path / "m.onnx"
    selective.export_onnx(path, batch)
    graph = _onnx.OnnxGraph(path)
    assert graph.inputs == ["input_ids", "attention_mask"]
    for rows in (1, 2, 6):
        some = {name: values[:rows] for name, values in batch.items()}
        found, expected = graph({name: values.numpy() for name, values in some.items()}), selective(some)
        np.testing.assert_array_equal(found.label, expected.label)
        np.testing.assert_allclose(found.confidence, expected.confidence, rtol=1e-6)
        np.testing.assert_array_equal(found.accepted, expected.accepted)
    with pytest.raises(ValueError, match="the graph takes input_ids, attention_mask; got images"):
        graph(batch["input_ids"].numpy())
    np.testing.assert_array_equal(graph(batch).label, selective(batch).label)  # tensors too
    with pytest.raises(ValueError, match="`attention_mask` must have as many rows as `input_ids`; got 1 and 6"):
        graph({**batch, "attention_mask": batch["attention_mask"][:1]})
    with pytest.raises(sirc.StoreError, match="must take images and say how they are prepared"):
        _onnx.OnnxModel(path)


@pytest.mark.parametrize("example", [{}, {"labels": torch.zeros(2, 1)}, {"x": [1, 2]}, torch.zeros(0, 3), None, "x"])
def test_an_example_is_a_batch_of_tensors(sentences, tmp_path, example):
    with pytest.raises(ValueError, match="must be a batch of at least one input"):
        sentences[0].export_onnx(tmp_path / "m.onnx", example)
