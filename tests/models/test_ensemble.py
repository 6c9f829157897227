"""An ensemble is one network: the mean softmax of its members, and the features of all of them."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sirc
from sirc.data import Preprocess
from sirc.deploy.onnx import OnnxGraph
from sirc.models import Ensemble, preprocess_of


def member(width, classes=4):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, classes))


@pytest.fixture
def members():
    torch.manual_seed(0)
    return [member(8), member(12), member(16)]


@pytest.fixture
def data(members):
    def make(count):
        x = torch.randn(count, 6)
        with torch.no_grad():
            labels = (Ensemble(members)(x) + torch.randn(count, 4) / 10).argmax(-1)
        return TensorDataset(x, labels)

    return make


@torch.no_grad()
def test_softmax_and_energy_are_the_means_of_the_members(members):
    x = 20 * torch.randn(50, 6)
    each = [model(x).double() for model in members]
    logits = Ensemble(members)(x).double()
    torch.testing.assert_close(logits.softmax(-1), sum(v.softmax(-1) for v in each) / 3, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(logits.logsumexp(-1), sum(v.logsumexp(-1) for v in each) / 3, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(Ensemble(members[:1])(x), members[0](x))


def test_a_model_in_half_precision_has_logits_that_do_not_tie(members):
    logits = Ensemble([model.bfloat16() for model in members])(torch.randn(5, 6).bfloat16())
    assert logits.dtype == torch.float32


@torch.no_grad()
def test_features_are_those_of_all_members_side_by_side(members, data):
    rows = data(40)
    (x, labels), made = rows.tensors, sirc.extract(Ensemble(members), rows)
    torch.testing.assert_close(made.features, torch.cat([model[:2](x) for model in members], 1))
    torch.testing.assert_close(made.logits, Ensemble(members)(x))
    assert torch.equal(made.labels, labels)
    l1 = sum(model[:2](x).abs().sum(1) for model in members)
    torch.testing.assert_close(sirc.Scorer("l1")(made)["l1"], l1.double(), rtol=1e-5, atol=1e-5)


def test_a_guard_takes_a_list_and_hears_the_features(members, data, tmp_path):
    guard = sirc.guard(members, data(300), data(200))
    assert guard.head_name == "members.0.2 + members.1.2 + members.2.2"
    assert "Ensemble of 3: the features of all stand side by side" in str(guard)
    assert all(f"`{s2}`" in str(guard) for s2 in ("mahalanobis", "mahalanobis_pp", "knn", "l1"))
    x = data(20).tensors[0]
    guard.save(tmp_path / "guard.safetensors")
    again = sirc.load_guard(tmp_path / "guard.safetensors", members)
    assert torch.equal(again(x).confidence, guard(x).confidence)
    assert str(again) == str(guard)
    with pytest.raises(sirc.StoreError, match="calibrated for another model"):
        sirc.load_guard(tmp_path / "guard.safetensors", members[::-1])
    decision, reasons = guard.explain(10 * torch.randn(50, 6))
    by_features = [number for number, reason in enumerate(reasons) if reason in ("mahalanobis", "knn", "l1")]
    assert by_features
    assert not decision.accepted[by_features].any()


def test_a_guard_of_stored_outputs_finds_the_heads_when_it_first_runs(members, data):
    train, val = (sirc.extract(Ensemble(members), data(count)) for count in (300, 200))
    guard = sirc.guard(members, train, val)
    assert guard.head_name is None
    x = data(4).tensors[0]
    assert torch.isfinite(guard(x).confidence).all()
    assert guard.head_name == sirc.guard(members, data(300), data(200), head="2").head_name


@pytest.mark.slow
def test_the_graph_decides_as_the_ensemble_does(members, data, tmp_path):
    guard = sirc.guard(members, data(300), data(200))
    x = data(7).tensors[0]
    guard.export_onnx(tmp_path / "guard.onnx", x[:3])
    graph = OnnxGraph(tmp_path / "guard.onnx")(x.numpy())
    decision = guard(x)
    torch.testing.assert_close(torch.from_numpy(graph.confidence), decision.confidence, rtol=1e-4, atol=1e-4)
    assert graph.label.tolist() == decision.label.tolist()
    compiled = torch.compile(guard, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x).confidence, decision.confidence)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, a, b):
        return {"logits": self.head(torch.cat([a, b], 1))}


def test_members_take_what_each_would_take_alone():
    a, b = torch.randn(6, 2), torch.randn(6, 3)
    ensemble = Ensemble([Pair(), Pair()]).eval()
    by_place = sirc.extract(ensemble, [((a, b), torch.arange(6) % 3)])
    by_name = sirc.extract(ensemble, [{"a": a, "b": b}])
    assert torch.equal(by_place.logits, by_name.logits)
    assert torch.equal(by_place.features, torch.cat([a, b, a, b], 1))


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], "a list of at least one model; got \\[\\]"),
        ([member(8), "timm:resnet18"], r"must be a torch.nn.Module; got str. Build it first: `sirc.models.build\(name"),
        ([member(8), member(8, 5)], r"must have the same classes; got \[4, 5\] outputs"),
        ([member(8), nn.Sequential(member(8), nn.Softmax(-1))], "Member 1 of the ensemble: .*a softmax of '0.2'"),
    ],
)  # fmt: skip
def test_what_is_no_ensemble_is_refused(models, words, data):
    with pytest.raises(ValueError, match=words):
        sirc.guard(models, data(100), data(100))


def test_a_score_that_needs_the_head_is_refused_before_the_models_run(members, data):
    train = data(100)
    members[0].register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
    with pytest.raises(ValueError, match=r"must do without the head, .*; `residual` needs it\. Take `scod`, or S2"):
        sirc.guard(members, train, train, score="sirc(msp, residual)")
    with pytest.raises(ValueError, match=r"no head of its own: .* not W z \+ b.*`ensemble\.members\[0\]`"):
        sirc.find_head(Ensemble(members), torch.randn(2, 6))


def test_members_that_want_images_in_one_way_say_so_together():
    import timm

    same = [timm.create_model("test_resnet", num_classes=3) for _ in range(2)]
    assert preprocess_of(Ensemble(same)) == preprocess_of(same[0])
    assert isinstance(preprocess_of(same[0]), Preprocess)
    other = timm.create_model("test_vit", num_classes=3)
    other.pretrained_cfg = {**other.pretrained_cfg, "mean": (0.1, 0.1, 0.1)}
    with pytest.raises(ValueError, match="must share one preprocessing"):
        preprocess_of(Ensemble([same[0], other]))
