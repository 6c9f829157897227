"""A selective classifier says what its scorer says, in one forward of any model, and forgets nothing when saved."""

import copy
import gc
import json
import threading
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sirc
from sirc import SelectiveClassifier
from sirc._utils.files import read_safetensors, write_safetensors
from sirc._utils.graphs import prevents_graphs
from sirc.data.preprocess import Preprocess
from sirc.deploy import saved
from sirc.deploy.confidence_graph import LOWEST
from sirc.deploy.selective import largest_batch
from sirc.experiment import DEFAULT_SPECS
from support.repeating import mlp, repeating, shares, small_resnet

K, SIDE = 5, 8
SPECS = (*DEFAULT_SPECS, "knn(k=3)", "sirc(msp, l1, residual, knn)", "product(msp, l1)", "linear(energy, l1, c=0.1)")


LATER = (
    *("margin", "tempered_msp", "tempered_entropy", "max_logit_pnorm", "max_logit_pnorm(p=2)", "gen(gamma=0.2, m=3)"),
    *("mahalanobis_pp", "relative_mahalanobis", "nnguide", "react", "scale", "ash", "nci", "fdbd", "cop"),
    *("sirc(max_logit_pnorm, nnguide)", "sirc(tempered_entropy, react, fdbd)", "sirc(gen, cop, budget=1)"),
    *("additive(margin, residual, kappa=0.3)", "additive(tempered_msp, l1, knn)"),
    *("bayes(msp, residual)", "bayes(max_logit_pnorm, l1, knn, alpha=0.3, beta=0.8)", "bayes(gen, nci, metric=aurr)"),
    *(
        "delta_mahalanobis",
        "sirc(msp, delta_knn)",
        "both(entropy, residual)",
        "both(additive(tempered_msp, l1, knn), bayes(msp, residual), nci)",
    ),
)
BAYES = tuple(spec for spec in LATER if spec.startswith("bayes"))


class Net(nn.Module):
    """A small network that counts its forwards."""

    def __init__(self, classes=K, width=12):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(width, classes)
        self.calls = 0

    def forward(self, x):
        if not torch.compiler.is_compiling():
            self.calls += 1
        return self.fc(self.body(x))


def images(n, seed):
    return torch.randn(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def labelled(model, x, seed):
    """Outputs whose labels are the prediction in about three of four rows."""
    with torch.no_grad():
        z = model.body(x)
        logits = model.fc(z)
    g = torch.Generator().manual_seed(seed)
    other = torch.randint(0, logits.shape[1], (len(x),), generator=g)
    labels = torch.where(torch.rand(len(x), generator=g) < 0.7, logits.argmax(-1), other)
    return sirc.Outputs(logits, z, labels)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = Net().eval()
    with torch.no_grad():
        net.fc.weight *= 5
        net.fc.bias -= net(images(400, 1)).mean(0)  # so that it predicts every class, some with confidence
    return net


@pytest.fixture(scope="module")
def head(model):
    return sirc.find_head(model, images(2, 0))


@pytest.fixture(scope="module")
def train(model):
    return labelled(model, images(400, 1), 1)


@pytest.fixture(scope="module")
def val(model):
    return labelled(model, images(300, 2), 2)


@pytest.fixture(scope="module")
def scorer(train, head):
    return sirc.fit(list(SPECS), train, head=head)


@pytest.fixture
def selective(model, scorer, head, val):
    return SelectiveClassifier(model, scorer, "sirc(entropy, residual)", head=head).calibrate(val, recall=0.9)


@pytest.mark.parametrize("spec", SPECS)
def test_it_says_what_the_scorer_says(model, scorer, head, spec):
    x = images(50, 3)
    found = SelectiveClassifier(model, scorer, spec, head=head).set_threshold(0.0)(x)
    expected = labelled(model, x, 3)
    torch.testing.assert_close(found.confidence, scorer(expected)[spec], rtol=1e-6, atol=1e-9)
    assert found.confidence.dtype == torch.float64
    assert torch.equal(found.label, expected.predictions)
    assert torch.equal(found.accepted, found.confidence >= 0)


@pytest.mark.parametrize("given", [True, False], ids=["all", "reduced"])
def test_a_scod_decides_and_is_saved_with_the_witnesses_that_it_has(model, train, val, head, given, tmp_path):
    told = nullcontext() if given else pytest.warns(sirc.errors.DataWarning, match="`scod` uses fewer witnesses")
    with told:
        fitted = sirc.fit(["scod", "scod(alpha=0.9)", "msp"], train, head=head if given else None)
    made = SelectiveClassifier(model, fitted, "scod", head=head).calibrate(val, recall=0.8)
    made.save(tmp_path / "m.safetensors")
    x = images(50, 3)
    for found in (made(x), SelectiveClassifier.load(tmp_path / "m.safetensors", model)(x)):
        torch.testing.assert_close(found.confidence, fitted(labelled(model, x, 3))["scod"], rtol=1e-6, atol=1e-9)
        assert 0 < int(found.accepted.sum()) < 50
    kept = SelectiveClassifier.load(tmp_path / "m.safetensors", model).scorer.parameters
    assert ("residual" in kept, "knn" in kept) == (given, True)
    assert "scod(alpha=0.9)" not in kept


@pytest.fixture(scope="module")
def tuned(model, train, head):
    """Scorers tuned on validation rows: `bayes` by a surrogate, and as learnt from OOD rows."""
    val, ood = labelled(model, images(300, 50), 50), labelled(model, 2 * images(200, 51), 51)
    surrogate = sirc.fit(list(LATER), train, head=head, val=val)
    # Options that validation rows could have asked for, the score alone and as an S1.
    surrogate.parameters["max_logit_pnorm"] = {"p": torch.tensor([0.0]), "p_bounded": torch.tensor([3.0])}
    return surrogate, sirc.fit(list(BAYES), train, head=head, val=val, ood=ood)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_says_what_a_tuned_scorer_says(model, head, tuned, dtype):
    x = images(50, 52).to(dtype)
    network = copy.deepcopy(model).to(dtype)
    expected = labelled(network, x, 52)
    for scorer in tuned:
        for spec in scorer.specs:
            found = SelectiveClassifier(network, scorer, spec, head=head).set_threshold(0.0)(x)
            torch.testing.assert_close(found.confidence, scorer(expected)[spec], rtol=1e-6, atol=1e-9)


def test_a_model_in_double_precision_is_scored_in_it(model, train, head):
    double = copy.deepcopy(model).double()
    scorer = sirc.fit("sirc(entropy, residual)", train.to(dtype=torch.float64), head=head)
    found = SelectiveClassifier(double, scorer, "sirc(entropy, residual)", head=head).set_threshold(0.0)
    x = images(20, 18).double()
    expected = scorer(labelled(double, x, 0))["sirc(entropy, residual)"]
    torch.testing.assert_close(found(x).confidence, expected, rtol=1e-12, atol=1e-12)


def test_one_forward_of_the_model_does_it(model, selective):
    before = model.calls
    selective(images(3, 4))
    assert model.calls == before + 1


def test_a_batch_of_one_is_its_row_of_a_larger_batch(selective):
    x = images(6, 5)
    whole = selective(x)
    for i in range(6):
        alone = selective(x[i : i + 1])
        torch.testing.assert_close(alone.confidence, whole.confidence[i : i + 1], rtol=1e-5, atol=1e-6)
        assert alone.label.shape == alone.accepted.shape == (1,)


def test_the_threshold_reaches_its_recall_on_the_calibration_data(selective, val, scorer):
    confidence = scorer(val)["sirc(entropy, residual)"]
    accepted = confidence >= selective.threshold.value
    recall = accepted[val.correct].double().mean()
    assert recall >= 0.9
    plain = sirc.Ranking(confidence[val.correct]).threshold(recall=0.9)
    assert selective.threshold.value == plain - selective.threshold.margin
    assert selective.threshold.margin == pytest.approx(1e-2 * max(abs(plain), confidence.abs().quantile(0.5)))
    assert torch.equal(selective.calibration, confidence)


def test_the_head_is_found_on_the_first_batch(model, scorer, val):
    found = SelectiveClassifier(model, scorer, "vim").calibrate(val, coverage=0.8)
    assert found.head_name is None
    found(images(1, 6))
    assert found.head_name == "fc"


def test_the_layer_of_arrays_alone_is_found(model, scorer, head, val):
    arrays = sirc.Head(head.weight, head.bias)  # as a `.npz` file holds them
    found = SelectiveClassifier(model, scorer, "vim", head=arrays).calibrate(val, coverage=0.8)
    x = images(4, 6)
    known = SelectiveClassifier(model, scorer, "vim", head=head).calibrate(val, coverage=0.8)
    assert torch.equal(found(x).confidence, known(x).confidence)
    features = sirc.extract(model, TensorDataset(x, torch.zeros(4, dtype=torch.long)), head=arrays).features
    assert torch.equal(features, model.body(x))


def test_each_rule_of_calibration(model, scorer, head, val):
    def made(**rule):
        return SelectiveClassifier(model, scorer, "msp", head=head).calibrate(val, **rule)

    far = labelled(model, 3 * images(200, 7), 7)
    assert made(coverage=0.5).threshold.rule == "coverage"
    assert made(risk=0.4).threshold.delta == 0.05
    assert made(recall=0.9, delta=0.1).threshold.value <= made(recall=0.9).threshold.value
    cost = made(ood=far, alpha=0.5, beta=0.5, reject_cost=0.2)
    assert cost.threshold.rule == "cost"
    for rule in (
        {},
        {"recall": 0.9, "risk": 0.1},
        {"ood": far, "recall": 0.9},
        {"ood": far, "alpha": 0.5, "beta": 0.5},
    ):
        with pytest.raises(ValueError, match=r"recall"):
            made(**rule)
    with pytest.raises(ValueError, match="delta"):
        made(ood=far, alpha=0.5, beta=0.5, recall=0.9, delta=0.1)


def test_a_loader_calibrates_as_its_outputs_do(model, scorer, head, val):
    loader = DataLoader(TensorDataset(images(300, 2), val.labels), batch_size=64)
    by_images = SelectiveClassifier(model, scorer, "sirc(msp, l1)", head=head).calibrate(loader, recall=0.9)
    by_outputs = SelectiveClassifier(model, scorer, "sirc(msp, l1)", head=head)
    by_outputs.calibrate(val, images=images(300, 2)[:64], recall=0.9)
    assert by_images.threshold.value == pytest.approx(by_outputs.threshold.value, rel=1e-5)


def test_rows_that_fitted_a_score_promise_nothing(model, scorer, head, train, val):
    made = SelectiveClassifier(model, scorer, "sirc(msp, l1)", head=head)
    for rule in ({"recall": 0.9, "delta": 0.1}, {"risk": 0.3}, {"coverage": 0.9, "delta": 0.1}):
        with pytest.raises(ValueError, match="fitted on may not set a threshold with a guarantee; about 100%"):
            made.calibrate(train, **rule)
    with pytest.raises(ValueError, match="about 25%"):
        made.calibrate(sirc.Outputs.cat([train[:100], val]), recall=0.9, delta=0.1)
    assert made.calibrate(train, recall=0.9).threshold.delta is None
    assert made.calibrate(val, recall=0.9, delta=0.1).threshold.feasible


def test_without_a_threshold_nothing_is_decided(model, scorer):
    bare = SelectiveClassifier(model, scorer, "msp")
    for decide in (bare, bare.explain):
        with pytest.raises(sirc.NotFittedError, match="calibrate"):
            decide(images(2, 8))


def test_it_never_trains(selective, model):
    with pytest.raises(ValueError, match="evaluation mode"):
        selective.train()
    assert not selective.training
    assert not model.training


def test_what_is_no_number_is_not_accepted(selective):
    x = images(3, 9)
    x[1] = torch.nan
    selective.set_threshold(-torch.inf)
    for found in (selective(x), selective.explain(x)[0]):
        assert found.accepted.tolist() == [True, False, True]
        assert found.confidence.isfinite().all()
        assert found.confidence[1] == LOWEST


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_fit_and_the_order(model, scorer, head, val, dtype):
    whole = SelectiveClassifier(copy.deepcopy(model), scorer, "sirc(entropy, residual)", head=head)
    whole.calibrate(val, recall=0.9)
    x = images(100, 10)
    expected = whole(x)
    half = whole.to(dtype)
    assert half.scoring.parameter_0.dtype == torch.float32
    assert half.scoring.limit.dtype == torch.float64
    found = half(x.to(dtype))
    assert found.confidence.dtype == torch.float64
    assert found.logits.dtype == torch.float32
    assert len(found.confidence.unique()) == 100
    assert np.corrcoef(found.confidence, expected.confidence)[0, 1] > 0.99


def test_a_caller_s_autocast_changes_the_network_alone(selective, scorer, model):
    x = images(60, 17)
    with torch.autocast("cpu", torch.bfloat16):
        found = selective(x)
        features = model.body(x)
    assert found.logits.dtype == torch.float32
    outputs = sirc.Outputs(found.logits, features)
    torch.testing.assert_close(found.confidence, scorer(outputs)["sirc(entropy, residual)"], rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_the_compiler_sees_one_graph(selective):
    x = images(7, 11)
    compiled = torch.compile(selective, fullgraph=True, backend="eager")
    expected = selective(x)
    found = compiled(x)
    torch.testing.assert_close(found.confidence, expected.confidence, rtol=1e-9, atol=1e-12)
    assert torch.equal(found.accepted, expected.accepted)
    torch.testing.assert_close(compiled(x[:3]).confidence, expected.confidence[:3], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_compiled_classifiers_share_a_model(model, scorer, head, val):
    x = images(5, 25)
    both = [
        SelectiveClassifier(model, scorer, spec, head=head).calibrate(val, recall=0.9)
        for spec in ("vim", "sirc(msp, l1)")
    ]
    expected = [one(x).confidence for one in both]
    compiled = [torch.compile(one, fullgraph=True, backend="eager") for one in both]
    for _ in range(2):
        for one, wanted in zip(compiled, expected, strict=True):
            torch.testing.assert_close(one(x).confidence, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_threads_do_not_take_each_other_s_features(selective):
    inputs = [images(20, 100 + i) for i in range(8)]
    expected = [selective(x).confidence for x in inputs]
    wrong = []

    def work(i):
        for _ in range(30):
            if not torch.allclose(selective(inputs[i]).confidence, expected[i]):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_a_copy_stands_alone(selective):
    other = copy.deepcopy(selective)
    x = images(4, 12)
    assert torch.equal(other(x).confidence, selective(x).confidence)
    with torch.no_grad():
        other.model.fc.weight.zero_()
    assert not torch.equal(other(x).confidence, selective(x).confidence)
    assert other.threshold == selective.threshold


class Wrapped(nn.Module):
    """What other libraries return: an object, a dict or a tuple with logits in it."""

    def __init__(self, model, form):
        super().__init__()
        self.inner, self.form = model, form

    def forward(self, x):
        return self.form(self.inner(x))


@pytest.mark.parametrize("form", [lambda v: {"logits": v}, lambda v: (v, None), lambda v: v[:, :, None, None]])
def test_any_model_that_find_head_knows(model, scorer, val, form):
    found = SelectiveClassifier(Wrapped(model, form), scorer, "vim", head="inner.fc").calibrate(val, recall=0.9)
    torch.testing.assert_close(
        found(images(4, 13)).confidence, scorer(labelled(model, images(4, 13), 0))["vim"], rtol=1e-6, atol=1e-9
    )


def test_a_rejection_names_what_drove_it(model, head, train):
    scorer = sirc.fit(["sirc(msp, l1, residual)", "msp", "vim"], train, head=head)
    x = torch.cat([images(40, 14), 30 * images(40, 15), torch.zeros(1, 3, SIDE, SIDE)])
    outputs = labelled(model, x, 0)
    made = SelectiveClassifier(model, scorer, "sirc(msp, l1, residual)", head=head)
    found, reasons = made.set_threshold(float(sirc.Scorer(["msp"])(outputs)["msp"][:40].median())).explain(x)
    a, b = (scorer.parameters["sirc(msp, l1, residual)"][key] for key in "ab")
    first = sirc.Scorer(["msp"])(outputs)["msp"]
    values = [outputs.features.abs().sum(-1), residual_of(scorer, outputs)]
    terms = torch.stack([torch.nn.functional.softplus(b[i] * (a[i] - values[i].double())) for i in range(2)])
    for i, reason in enumerate(reasons):
        if found.accepted[i]:
            assert reason == ""
        elif first[i] < made.threshold.value:
            assert reason == "softmax"
        else:
            assert reason == ("l1", "residual")[int(terms[:, i].argmax())]
    assert {"", "softmax"} <= set(reasons)
    assert {"l1", "residual"} & set(reasons)
    alone = SelectiveClassifier(model, scorer, "msp", head=head).set_threshold(float("inf"))
    assert set(alone.explain(x)[1]) == {"softmax"}


@pytest.mark.slow
@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("spec", ["additive(msp, l1, residual)", "bayes(msp, l1, residual, alpha=0.2)"])
def test_a_rejection_by_later_combinations_names_what_drove_it(model, head, train, spec, learnt):
    data = {"val": labelled(model, images(300, 50), 50), "ood": labelled(model, 2 * images(200, 51), 51)}
    scorer = sirc.fit(spec, train, head=head, **(data if learnt else {}))
    x = torch.cat([images(60, 14), 30 * images(40, 15)])
    made = SelectiveClassifier(model, scorer, spec, head=head)
    outputs = labelled(model, x, 0)
    confidence = scorer(outputs)[spec]
    found, reasons = made.set_threshold(float(confidence[:60].quantile(0.4))).explain(x)
    # The same rows with S2 far on the side of ID data: those still rejected are the softmax's.
    given = dict(scorer.parameters)
    given[spec] = {**given[spec], "a": torch.full_like(given[spec]["a"], -1e9)}
    typical = sirc.Scorer(spec, given)(outputs)[spec]
    a, b = (scorer.parameters[spec][key] for key in "ab")
    first = sirc.fit(["l1", "residual"], train, head=head)(outputs)
    lows = torch.stack([b[i] * (a[i] - first[name]) for i, name in enumerate(("l1", "residual"))])
    for i, reason in enumerate(reasons):
        if found.accepted[i]:
            assert reason == ""
        elif typical[i] < made.threshold.value:
            assert reason == "softmax"
        else:
            assert reason == ("l1", "residual")[int(lows[:, i].argmax())]
    assert "" in reasons
    assert {"l1", "residual"} & set(reasons)
    assert set(made.set_threshold(1e6).explain(x)[1]) == {"softmax"}


def residual_of(scorer, outputs):
    fitted = scorer.parameters["residual"]
    return -((outputs.features.double() - fitted["origin"]) @ fitted["basis"]).norm(dim=-1)


def test_what_is_saved_is_what_is_loaded(selective, model, tmp_path):
    selective.classes = list("abcde")
    selective.preprocess = Preprocess(resize=(9, 8), crop=None, mean=(0.5, 0.4, 0.3))
    selective.save(tmp_path / "s.safetensors")
    again = SelectiveClassifier.load(tmp_path / "s.safetensors", model)
    x = images(9, 16)
    assert torch.equal(again(x).confidence, selective(x).confidence)
    assert torch.equal(again(x).accepted, selective(x).accepted)
    assert again.threshold == selective.threshold
    assert (again.classes, again.preprocess, again.head_name) == (list("abcde"), selective.preprocess, "fc")
    assert torch.equal(again.calibration, selective.calibration)
    with pytest.raises(FileExistsError, match="overwrite"):
        selective.save(tmp_path / "s.safetensors")
    selective.set_threshold(1.25).save(tmp_path / "given.safetensors")
    assert SelectiveClassifier.load(tmp_path / "given.safetensors", model).threshold.value == 1.25


def test_another_model_is_refused(selective, model, tmp_path):
    selective.save(tmp_path / "s.safetensors")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.fc.bias[0] += 1e-6
    with pytest.raises(sirc.StoreError, match="calibrated for another model"):
        SelectiveClassifier.load(tmp_path / "s.safetensors", other)


def test_a_file_that_was_tampered_with_is_refused(selective, model, tmp_path):
    path = tmp_path / "s.safetensors"
    selective.save(path)
    whole = path.read_bytes()
    text = json.dumps(selective.threshold.value)[:6].encode()
    assert whole.count(text) >= 1
    for damaged in (
        whole.replace(text, b"0.0000"[: len(text)]),
        whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        whole[:-5],
    ):
        path.write_bytes(damaged)
        with pytest.raises(sirc.StoreError):
            SelectiveClassifier.load(path, model)
    selective.scorer.save(path, overwrite=True)
    with pytest.raises(sirc.StoreError, match="not a saved selective classifier"):
        SelectiveClassifier.load(path, model)


def test_a_file_with_the_right_checksum_and_wrong_content_is_refused_in_words(selective, model, tmp_path):
    """As another version, or someone who knows the format, would write it; also where only its calibration is read."""
    path = tmp_path / "selective.safetensors"
    selective.save(path)
    tensors, metadata = read_safetensors(path)
    tensors, facts = {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(metadata["sirc"])
    odd = torch.zeros(0), torch.zeros(3, 3, 3), torch.tensor(5), torch.zeros(7, dtype=torch.int64)
    gone = object()
    forged = [(key, value, {}) for key in facts for value in (None, 5, "x", [None], {"a": 1}, gone)]
    forged += [(key, gone, {key: gone}) for key in tensors]
    forged += [(key, tensor, {key: tensor}) for key in tensors for tensor in odd]
    every, loaded, calibrated = set(), set(), set()
    for key, value, changed in forged:
        about = facts if changed else {**facts, key: value}
        about = {name: fact for name, fact in about.items() if fact is not gone}
        content = {name: tensor for name, tensor in {**tensors, **changed}.items() if tensor is not gone}
        write_safetensors(path, content, {"sirc": json.dumps(about)}, overwrite=True)
        shown = "gone" if value is gone else str(value)
        every.add((key, shown))
        for read, accepted in (
            (partial(SelectiveClassifier.load, path, model), loaded),
            (partial(saved.calibration_of, path), calibrated),
        ):
            with suppress(sirc.StoreError):
                read()
                accepted.add((key, shown))
    # What is left: values that a file may have; parts that earlier versions did not write, or that only a service
    # reads; and a number that stands for a row of equal ones.
    may_be_none = {"num_classes", "fitted_rows", "head", "classes", "preprocess", "quantiles"}
    read_elsewhere = {("quantiles", shown) for shown in ("5", "x", "[None]", "{'a': 1}", "gone")}
    assert loaded == {
        *((name, "None") for name in may_be_none),
        *(("num_classes", "5"), ("fitted_rows", "5"), ("residual/origin", "tensor(5)")),
        *((name, "gone") for name in ("remarks", "calibration_correct", "fitted_on")),
        *read_elsewhere,
    }
    needed = {"format", "version", "threshold", "calibration"}
    assert calibrated == {(key, shown) for key, shown in every if key not in needed}


def test_nonsense_is_refused(model, scorer, head):
    with pytest.raises(ValueError, match="not among the scorer's specs"):
        SelectiveClassifier(model, scorer, "sirc(msp, mahalanobis)")
    with pytest.raises(ValueError, match=r"torch\.nn\.Module"):
        SelectiveClassifier(lambda x: x, scorer, "msp")
    with pytest.raises(ValueError, match=r"sirc\.fit"):
        SelectiveClassifier(model, {"msp": 1}, "msp")
    with pytest.raises(ValueError, match="each of the 5 classes"):
        SelectiveClassifier(model, scorer, "msp", classes=["cat"])
    with pytest.raises(ValueError, match="fitted on 12 features; layer 'fc' receives 7"):
        SelectiveClassifier(Net(width=7), scorer, "vim", head="fc")
    with pytest.raises(ValueError, match="labels"):
        SelectiveClassifier(model, scorer, "msp").calibrate(sirc.Outputs(torch.randn(5, K)), recall=0.9)


@pytest.mark.slow
def test_a_model_that_is_compiled_already_is_refused(model, scorer):
    with pytest.raises(ValueError, match=r"torch\.compile\(selective\)"):
        SelectiveClassifier(torch.compile(copy.deepcopy(model), backend="eager"), scorer, "msp")


def test_a_score_on_logits_needs_no_head_and_one_forward(scorer, val):
    class Flipping(Net):
        """Averages over an image and its mirror: no layer gives its output."""

        def forward(self, x):
            return (super().forward(x) + super().forward(x.flip(-1))) / 2

    torch.manual_seed(0)
    net = Flipping()
    found = SelectiveClassifier(net, scorer, "msp").calibrate(val, recall=0.9)
    found(images(2, 20))
    before = net.calls
    found(images(2, 20))
    assert net.calls == before + 2  # both halves of one forward
    with pytest.raises(ValueError, match="find_head"):
        SelectiveClassifier(net, scorer, "vim").calibrate(val, recall=0.9)(images(2, 20))


@pytest.mark.slow
def test_the_head_must_be_known_before_compiling(model, scorer, val):
    found = SelectiveClassifier(model, scorer, "vim").calibrate(val, recall=0.9)
    with pytest.raises(Exception, match="head"):
        torch.compile(found, fullgraph=True, backend="eager")(images(2, 21))


def test_a_promise_is_not_saved_for_another_model_than_it_was_made_with(model, scorer, head, val, tmp_path):
    for change in (lambda net: net.fc.weight.data.mul_(-3), lambda net: net.to(torch.bfloat16)):
        made = SelectiveClassifier(copy.deepcopy(model), scorer, "msp", head=head)
        made.calibrate(val, recall=0.9, delta=0.1)
        change(made.model)
        with pytest.raises(ValueError, match="changed since `calibrate`"):
            made.save(tmp_path / "s.safetensors")
    assert not (tmp_path / "s.safetensors").exists()


def test_a_store_of_another_model_does_not_calibrate(model, scorer, head, val, tmp_path):
    loader = DataLoader(TensorDataset(images(300, 2), val.labels), batch_size=64)
    store = sirc.extract(model, loader, tmp_path / "store", head=head)
    made = SelectiveClassifier(model, scorer, "msp", head=head).calibrate(store, recall=0.9)
    assert made.threshold.sizes["correct"] == int(val.correct.sum())
    other = copy.deepcopy(model)
    other.fc.weight.data.add_(1)
    with pytest.raises(sirc.StoreError, match="another model"):
        SelectiveClassifier(other, scorer, "msp", head=head).calibrate(store, recall=0.9)


def test_what_was_loaded_still_knows_the_rows_it_was_fitted_on(selective, model, train, tmp_path):
    selective.save(tmp_path / "s.safetensors")
    again = SelectiveClassifier.load(tmp_path / "s.safetensors", model)
    with pytest.raises(ValueError, match="about 100%"):
        again.calibrate(train, recall=0.9, delta=0.1)


def test_a_score_that_learnt_nothing_may_be_calibrated_on_any_rows(model, scorer, head, train):
    made = SelectiveClassifier(model, scorer, "msp", head=head).calibrate(train, recall=0.9, delta=0.1)
    assert made.threshold.bounds["recall"] == 0.9


def test_training_mode_is_noticed(model, scorer, head, val):
    made = SelectiveClassifier(copy.deepcopy(model), scorer, "msp", head=head).calibrate(val, recall=0.9)
    made.model.train()
    with pytest.raises(ValueError, match="training mode"):
        made(images(2, 22))
    made.eval()
    made(images(2, 22))


@pytest.mark.slow
def test_the_model_is_left_as_it_was(scorer, val):
    net = Net().eval()
    for _ in range(3):
        made = SelectiveClassifier(net, scorer, "vim", head="fc").calibrate(val, recall=0.9)
        made(images(2, 23))
        with pytest.raises(RuntimeError):
            made(torch.zeros(2, 5, SIDE, SIDE))
        made(images(2, 23))
        del made
        gc.collect()
    assert len(net.fc._forward_pre_hooks) == 0


def test_coverage_needs_no_labels_and_cost_needs_ood_data(model, scorer, head, val):
    made = SelectiveClassifier(model, scorer, "sirc(msp, l1)", head=head)
    bare = sirc.Outputs(val.logits, val.features)
    assert made.calibrate(bare, coverage=0.8).threshold.value == made.calibrate(val, coverage=0.8).threshold.value
    with pytest.raises(ValueError, match=r"needs `ood` .*; got recall=, alpha=, beta=$"):
        made.calibrate(val, recall=0.9, alpha=0.5, beta=0.5)


@pytest.mark.parametrize(
    ("rule", "got"),
    [
        ({}, "none"),
        ({"delta": 0.1}, "delta="),
        ({"recall": 0.9, "risk": 0.1}, "recall=, risk="),
        ({"recall": 0.9, "ood": [torch.zeros(2, 3, SIDE, SIDE)]}, "recall=, ood="),
        ({"recall": 0.9, "reject_cost": 0.1}, "recall=, reject_cost="),
    ],
)
def test_a_goal_that_cannot_be_is_refused_before_the_model_runs(model, scorer, rule, got):
    def loader():
        raise AssertionError("the model ran")
        yield

    with pytest.raises(ValueError, match=f"give exactly one of .*; got {got}$"):
        SelectiveClassifier(model, scorer, "msp").calibrate(loader(), **rule)


def test_labels_in_another_order_are_told_when_the_threshold_is_set(model, scorer, head, val):
    moved = sirc.Outputs(val.logits, val.features, (val.labels + 1) % K)
    with pytest.warns(
        sirc.DataWarning, match="'val' agree with its labels in .* if the classes are numbered differently"
    ):
        SelectiveClassifier(model, scorer, "msp", head=head).calibrate(moved, recall=0.9)


def test_the_number_of_classes_must_fit(scorer):
    net = Net(classes=9)
    head = sirc.find_head(net, images(2, 24))
    with pytest.raises(ValueError, match="fitted on 5 logits; layer 'fc' gives 9"):
        SelectiveClassifier(net, scorer, "vim", head=head)


def test_a_file_that_lacks_something_is_refused(selective, model, tmp_path, monkeypatch):
    facts = saved.about(selective)
    for key in facts:
        less = {name: value for name, value in facts.items() if name != key}
        monkeypatch.setattr(saved, "about", lambda _, less=less: less)
        selective.save(tmp_path / "s.safetensors", overwrite=True)
        if key in ("quantiles", "remarks"):  # which files of earlier versions lack
            continue
        with pytest.raises(sirc.StoreError):
            SelectiveClassifier.load(tmp_path / "s.safetensors", model)


def test_a_decision_is_not_rounded_as_the_process_may_round_products(monkeypatch):
    entered = []

    @contextmanager
    def watched():
        entered.append("in")
        yield
        entered.append("out")

    monkeypatch.setattr("sirc.deploy.confidence_graph.full_products", watched)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    images = torch.randn(40, 3, 2, 2)
    features = model[:-1](images).detach()
    outputs = sirc.Outputs(model[-1](features).detach(), features, torch.randint(0, 3, (40,)))
    head = sirc.find_head(model, images[:2])
    selective = SelectiveClassifier(model, sirc.fit(["mahalanobis"], outputs, head=head), "mahalanobis", head=head)
    selective.set_threshold(0.0)
    entered.clear()
    selective(images)
    assert entered == ["in", "out"]


# Inputs that repeat


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.slow
def test_inputs_that_repeat_are_accepted_in_batches_of_any_size(dtype):
    made, x = repeating(mlp(7), dtype)
    assert made.threshold.margin > 0
    assert min(shares(lambda rows: made(rows).accepted.numpy(), x)) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("net", [mlp, small_resnet])
def test_inputs_that_repeat_are_accepted_by_many_networks(net, dtype, attack):
    networks = attack.trials(3)
    for seed in range(networks):
        made, x = repeating(net(seed), dtype)
        assert min(shares(lambda rows, made=made: made(rows).accepted.numpy(), x)) >= 0.95
    attack.tried("networks on inputs that repeat", networks, "the promised recall in batches of 1, 7 and 64")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_outputs_that_were_computed_in_bfloat16_get_its_margin_in_whatever_type_they_are_stored(seed, tmp_path):
    made, x = repeating(mlp(seed))
    with torch.no_grad():
        data = TensorDataset(x, made.model(x).argmax(-1))
    for precision, share in (("fp32", 1e-4), ("bf16", 3e-2)):
        options = {"precision": precision, "dtype": torch.float32, "head": made.head_name, "batch_size": 64}
        store = sirc.extract(made.model, data, path=tmp_path / precision, **options)
        made.calibrate(store, recall=0.95, delta=0.05)
        set_by = made.threshold.value + made.threshold.margin
        typical = made.calibration.abs().median().item()
        assert made.threshold.margin == pytest.approx(share * max(abs(set_by), typical))
        assert min(shares(lambda rows: made(rows).accepted.numpy(), x)) >= 0.95  # in float32


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("net", [mlp, small_resnet])
def test_inputs_that_repeat_are_accepted_by_the_graph(net, dtype, tmp_path, attack):
    onnxruntime = pytest.importorskip("onnxruntime")
    seeds = (1, 3)[: attack.trials(1)]
    for seed in seeds:
        made, x = repeating(net(seed), dtype)
        made.export_onnx(tmp_path / "model.onnx", x[:3], overwrite=True)
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        got = shares(lambda rows, s=session: s.run(["accepted"], {"images": rows.numpy()})[0], x)
        assert min(got) >= 0.95
    attack.tried("ONNX graphs on inputs that repeat", len(seeds), "the promised recall in batches of 1, 7 and 64")


def in_tf32(net):
    """Let a network convolve as cuDNN does by default: inputs and weights with 11 bits instead of 24."""

    def rounded(x):
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(lambda _, args: (rounded(args[0]),))
            layer.weight.data = rounded(layer.weight.data)


@pytest.mark.slow
def test_inputs_that_repeat_are_accepted_by_convolutions_in_tf32(attack):
    seeds = (5, 9, *range(5), 6, 7, 8, 10, 11)[: min(12, attack.trials(2))]  # those that change most come first
    for seed in seeds:
        made, x = repeating(small_resnet(seed))
        full = made(x).confidence
        in_tf32(made.model)
        assert not torch.allclose(made(x).confidence, full, rtol=1e-4, atol=0)
        assert min(shares(lambda rows, made=made: made(rows).accepted.numpy(), x)) >= 0.95
    attack.tried(
        "convolutions in TF32 on inputs that repeat", len(seeds), "the promised recall of a threshold of a CPU"
    )


def test_outputs_without_images_get_the_margin_of_tf32_unless_it_is_off(monkeypatch):
    made, x = repeating(small_resnet(0))
    outputs = sirc.extract(made.model, [(x, made.model(x).argmax(-1))], head=made.head_name)
    shares_of = []
    for rounds in (True, False):
        monkeypatch.setattr("sirc.deploy.selective.may_convolve_in_tf32", lambda rounds=rounds: rounds)
        margin = made.calibrate(outputs, recall=0.95, delta=0.05).threshold.margin
        set_by = made.threshold.value + margin
        shares_of.append(margin / max(abs(set_by), made.calibration.abs().median().item()))
    assert shares_of == pytest.approx([1e-2, 1e-4])


def test_a_network_that_changes_more_with_the_batch_gets_a_wider_margin():
    class Uneven(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(192, 5)

        def forward(self, x):
            return self.fc(x.flatten(1) * (1 + 1e-3 * (len(x) > 1)))

    torch.manual_seed(0)
    made, x = repeating(Uneven())
    outputs = sirc.extract(made.model, [(x, made.model(x).argmax(-1))])
    wide, told = made.threshold, made.calibrate(outputs, recall=0.95, delta=0.05).threshold
    assert wide.margin > 5 * told.margin > 0
    made.calibrate([(x, made.model(x).argmax(-1))], recall=0.95, delta=0.05)
    assert min(shares(lambda rows: made(rows).accepted.numpy(), x)) >= 0.95


def test_the_path_of_a_store_sets_the_threshold_that_the_store_sets(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4), torch.randn(300, 8)
    data, path = TensorDataset(x, model(x).argmax(-1)), tmp_path / "store"
    store = sirc.extract(model, data, path=path, precision="bf16", features=False, dtype=torch.float32)
    made = SelectiveClassifier(model, sirc.Scorer("msp"), "msp")
    margins = [made.calibrate(val, recall=0.9, delta=0.05).threshold.margin for val in (store, path, str(path))]
    assert margins == [margins[0]] * 3
    set_by = made.threshold.value + margins[0]
    assert margins[0] == pytest.approx(3e-2 * max(abs(set_by), made.calibration.abs().quantile(0.5).item()))


class Normalising(nn.Module):
    """A network that prepares its input, in place or not."""

    def __init__(self, in_place):
        super().__init__()
        self.in_place, self.fc = in_place, nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(x.sub_(0.5).div_(0.25) if self.in_place else (x - 0.5) / 0.25)


def test_a_network_that_changes_its_input_in_place_gets_the_margin_of_one_that_does_not():
    torch.manual_seed(0)
    plain, changing, hooked = Normalising(False), Normalising(True), nn.Sequential(nn.Linear(8, 4))
    changing.load_state_dict(plain.state_dict())
    hooked[0].load_state_dict(plain.fc.state_dict())
    hooked.register_forward_pre_hook(lambda _, args: ((args[0] - 0.5) / 0.25,))
    x = torch.rand(300, 8)
    data, batch = TensorDataset(x, plain(x).argmax(-1)), x[:20].clone()
    limits = []
    for model in (plain, changing, hooked):
        made = SelectiveClassifier(model, sirc.Scorer("msp"), "msp")
        limits += [made.calibrate(data, recall=0.9, delta=0.05).threshold]
        outputs = sirc.extract(model, data, features=False)
        limits += [made.calibrate(outputs, images=batch, recall=0.9, delta=0.05).threshold]
    assert torch.equal(batch, x[:20])
    for limit in limits:
        assert limit.value == pytest.approx(limits[0].value)
        assert limit.margin == pytest.approx(limits[0].margin)


def test_the_largest_batch_of_a_model_is_kept_and_prevents_no_cuda_graphs():
    model, x = nn.Linear(8, 4), torch.randn(9, 8)
    with largest_batch(model) as batches:
        assert not prevents_graphs(model)
        for rows in (x[:2], x[:6], x[3:9], x[:4]):
            model(rows)
        with model.register_forward_hook(lambda *_: None):
            assert prevents_graphs(model)
    ((images, logits),) = batches
    assert torch.equal(images[0][0], x[:6])
    assert torch.equal(logits, model(x[:6]))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
