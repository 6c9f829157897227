"""`find_head` sees which layer makes the logits, in the models people use, and says why when none does."""

from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
import torchvision.models
from torch import Tensor, nn
from torch.nn import functional

import sirc
from sirc import Head, find_head
from sirc._utils.files import write_safetensors
from sirc.models import capture_features, head_of
from sirc.models.calling import call_model, evaluating, model_logits, unwrap
from sirc.models.last_layer import is_whole

ZOO = [
    ("timm", "resnet50", {}, "fc", 2048),
    ("timm", "densenet121", {}, "classifier", 1024),
    ("timm", "mobilenetv2_100", {}, "classifier", 1280),
    ("timm", "efficientnet_b0", {}, "classifier", 1280),
    ("timm", "vit_tiny_patch16_224", {"img_size": 32}, "head", 192),
    ("timm", "convnext_atto", {}, "head.fc", 320),
    ("timm", "convnext_tiny", {}, "head.fc", 768),
    ("timm", "resnetv2_101x1_bit", {}, "head.fc", 2048),
    ("torchvision", "resnet50", {}, "fc", 2048),
    ("torchvision", "densenet121", {}, "classifier", 1024),
    ("torchvision", "mobilenet_v2", {}, "classifier.1", 1280),
    ("torchvision", "efficientnet_b0", {}, "classifier.1", 1280),
    ("torchvision", "vit_b_16", {"image_size": 32}, "heads.head", 768),
    ("torchvision", "convnext_tiny", {}, "classifier.2", 768),
]


class Net(nn.Module):
    """A tiny image classifier; `end` turns (logits, features) into whatever a test wants returned."""

    def __init__(self, end=lambda logits, features: logits) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.drop = nn.Dropout(0.5)
        self.project = nn.Linear(6, 5)
        self.fc = nn.Linear(5, 4)
        self.end = end

    def forward(self, x: Tensor) -> object:
        features = self.project(self.drop(self.body(x)))
        return self.end(self.fc(features), features)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def images():
    return torch.randn(2, 3, 8, 8)


def randomise(model: nn.Module) -> nn.Module:
    """Some libraries start heads at zero, where any statement about logits would be empty."""
    for parameter in model.parameters():
        if not parameter.detach().any():
            nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("library", "model_name", "options", "layer", "width"), ZOO)
def test_the_head_is_found_without_a_name_and_makes_the_logits(library, model_name, options, layer, width):
    create = timm.create_model if library == "timm" else torchvision.models.get_model
    model = randomise(create(model_name, **options)).eval()
    images = torch.randn(2, 3, 32, 32)
    head = find_head(model, images)
    assert (head.name, head.num_classes, head.num_features) == (layer, 1000, width)
    with torch.no_grad(), capture_features(model, head.name) as take:
        logits = model(images)
        features = take()
    assert features.shape == (2, width)
    assert logits.std() > 1e-4
    torch.testing.assert_close(features @ head.weight.T + head.bias, logits, rtol=1e-4, atol=1e-4)


def test_the_head_is_a_snapshot_of_the_layer(images):
    model = Net()
    head = find_head(model, images)
    before = model.fc.weight.detach().clone()
    nn.init.zeros_(model.fc.weight)
    assert torch.equal(head.weight, before)
    assert not head.weight.requires_grad


def test_equal_outputs_go_to_the_layer_that_ran_last():
    model = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4)))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert find_head(model, torch.randn(2, 4)).name == "c"


def test_a_layer_scaled_in_place_is_not_the_output(images):
    with pytest.raises(ValueError, match="this one does not"):
        find_head(Net(end=lambda logits, features: logits.div_(2)), images)


class Normalising(nn.Module):
    """A network that prepares its input in place."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x.sub_(0.5).div_(0.25))


@pytest.mark.parametrize(
    "batch_of", [lambda x: x, Tensor.numpy, lambda x: [x], lambda x: ((x,), 0), lambda x: {"x": x}]
)
def test_a_network_that_changes_its_input_in_place_leaves_the_example_as_it_was(batch_of):
    x = torch.rand(2, 4)
    kept, batch = x.clone(), batch_of(x)
    assert find_head(Normalising(), batch).name == "fc"
    assert torch.equal(x, kept)


def test_rows_that_show_the_head_are_extracted_as_all_others():
    model, x = Normalising(), torch.rand(6, 4)
    outputs = sirc.extract(model, [(x.clone(), torch.zeros(6, dtype=torch.int64))])
    torch.testing.assert_close(outputs.logits, model.fc((x - 0.5) / 0.25))


def test_nan_is_told_and_not_called_a_missing_head():
    with pytest.raises(ValueError, match="must give numbers for `example`; it gave NaN"):
        find_head(nn.Linear(3, 2), torch.full((2, 3), float("nan")))


def test_a_model_that_is_one_linear_layer_has_the_empty_name():
    assert find_head(nn.Linear(3, 2), torch.randn(2, 3)).name == ""


def test_a_head_without_bias_has_none():
    assert find_head(nn.Sequential(nn.Linear(3, 2, bias=False)), torch.randn(2, 3)).bias is None


Named = namedtuple("Named", "hidden logits")


@pytest.mark.parametrize(
    "end",
    [
        lambda v, z: v.clone(),
        lambda v, z: v.double(),
        lambda v, z: v[:, :, None, None],
        lambda v, z: (v, z),
        lambda v, z: [v.sum(), v, z],
        lambda v, z: (v.softmax(-1), v),
        lambda v, z: (v, v.softmax(-1)),
        lambda v, z: {"logits": v, "features": z},
        lambda v, z: {"loss": v.sum(), "out": v},
        lambda v, z: SimpleNamespace(loss=None, logits=v),
        lambda v, z: Named(z, v),
    ],
    ids=[
        "clone",
        "cast",
        "4-D",
        "tuple",
        "list",
        "with-softmax",
        "before-softmax",
        "dict",
        "only-matrix",
        "attribute",
        "namedtuple",
    ],
)
def test_logits_are_read_from_what_a_model_returns(end, images):
    assert find_head(Net(end), images).name == "fc"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (torch.zeros(2, 7, 4), r"logits \(N, K\), .*got a Tensor with 0: \(2, 7, 4\).*Wrap the model"),
        ({"a": torch.zeros(2, 4), "b": torch.zeros(2, 5)}, r"only 2-D.* dict; .*'a': \(2, 4\), 'b': \(2, 5\)"),
        ((torch.zeros(()), "x"), r"first 2-D tensor of a tuple .*got a tuple with 0: \(\), 1: str"),
        ("logits", r"must return logits .* got a str with 0: str"),
    ],
)
def test_an_output_without_clear_logits_is_refused(output, words):
    with pytest.raises(ValueError, match=words):
        model_logits(output)


@pytest.mark.parametrize(
    "batch",
    [
        lambda x: (x, torch.tensor([0, 1])),
        lambda x: [x, torch.tensor([0, 1]), ["a", "b"]],
        lambda x: {"x": x, "labels": torch.tensor([0, 1])},
        lambda x: {"image": x, "label": torch.tensor([0, 1])},
        lambda x: x.numpy(),
        lambda x: x.double(),
    ],
    ids=["tuple", "list", "dict", "dict-by-position", "numpy", "float64"],
)
def test_batches_are_taken_as_loaders_give_them(batch, images):
    assert find_head(Net(), batch(images)).name == "fc"


def test_dict_values_that_are_no_arrays_are_passed_as_they_are(images):
    class Switched(Net):
        def forward(self, x, double=False, **rest):
            assert rest == {"return_dict": True}
            return super().forward(x) * (2 if double else 1)

    assert find_head(Switched(), {"x": images, "double": False, "return_dict": True}).name == "fc"


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((), "a tuple that starts with one, .*got tuple"),
        (
            "images",
            r"must be a tensor, a tuple that starts with one, or a dict.*got str.*next\(iter\(loader\)\)",
        ),
        ({"labels": torch.tensor([1])}, r"must have the inputs that Net\.forward.* takes; got 0\."),
        ({"pixels": 1, "mask": 2}, r"got \['mask', 'pixels'\], and Net.forward takes \['x'\]"),
        (torch.zeros(0, 3, 8, 8), "at least one input"),
    ],
)
def test_a_batch_that_cannot_be_passed_says_why(batch, words):
    with pytest.raises(ValueError, match=words):
        find_head(Net(), batch)


def test_the_model_is_left_as_it_was(images):
    model = Net().train()
    model.body.eval()
    flags = {name: module.training for name, module in model.named_modules()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    find_head(model, images)
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert hooks(model) == 0
    assert torch.is_grad_enabled()


def test_batch_statistics_do_not_move_in_training_mode(images):
    model = Net().train()
    find_head(model, images)
    assert not model.body[1].running_mean.any()
    assert model.body[1].num_batches_tracked == 0


def test_an_exception_in_the_model_leaves_no_hook_and_restores_training(images):
    def fail(logits, features):
        raise RuntimeError("boom")

    model = Net(fail).train()
    with pytest.raises(RuntimeError, match="boom"):
        find_head(model, images)
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())


def test_models_whose_train_method_acts_on_weights_are_not_triggered(images):
    class Merging(Net):
        def train(self, mode=True):
            raise AssertionError("train() must not be called")

    assert find_head(Merging(), images).name == "fc"


def test_bfloat16_models_take_float32_examples(images):
    head = find_head(Net(lambda v, z: v.float()).bfloat16(), images)
    assert (head.name, head.weight.dtype) == ("fc", torch.bfloat16)


def test_autocast_outputs_are_recognised(images):
    with torch.autocast("cpu", torch.bfloat16):
        assert find_head(Net(lambda v, z: v.float()), images).name == "fc"


def test_lazy_layers_are_seen_and_can_still_be_trained():
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
    head = find_head(model, torch.randn(2, 3, 2))
    assert (head.name, head.num_features) == ("1", 6)
    model(torch.randn(2, 3, 2)).sum().backward()
    assert model[1].weight.grad is not None


@pytest.mark.slow
def test_wrappers_are_looked_through(images):
    model = Net()
    wrapped = nn.DataParallel(torch.compile(model, backend="eager"))
    assert unwrap(wrapped) is model
    assert find_head(wrapped, images).name == "fc"


@pytest.mark.slow
def test_parts_compiled_earlier_still_show_their_layers(images):
    model = Net().eval()
    model.compile(backend="eager")
    with torch.no_grad():  # as find_head will call it, so that the code made here fits
        model(images)
    assert find_head(model, images).name == "fc"


def test_a_named_layer_is_taken_whatever_the_model_does_with_it(images):
    model = Net(lambda v, z: v.softmax(-1))
    head = find_head(model, images, name="fc")
    assert head.name == "fc"
    assert torch.equal(head.weight, model.fc.weight)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fcc", r"Net has no 'fcc'\. Did you mean `fc`\?.*'project', 'fc'\."),
        ("body.1", r"must be an nn\.Linear or a 1×1 nn\.Conv2d of the model; 'body\.1' is BatchNorm2d"),
        ("body.0", r"'body\.0' is Conv2d"),
        ("project", r"'project' must give the shape of the model's logits, \(2, 4\); it gave \(2, 5\)"),
        ("unused", r"'unused' must run when the model does; it did not.*'fc' \(5 → 4, on \(2, 5\)\)"),
    ],
)
def test_a_wrong_name_is_refused(name, words, images):
    model = Net()
    if name == "unused":
        model.unused = nn.Linear(5, 4)
    with pytest.raises(ValueError, match=words):
        find_head(model, images, name=name)


@pytest.mark.parametrize("end", ["softmax", "log_softmax"])
def test_a_softmax_at_the_end_is_named(end, images):
    model = Net(lambda v, z: getattr(v, end)(-1))
    with pytest.raises(ValueError, match=f"ends with a {end} of 'fc': pass the network without it"):
        find_head(model, images)


def test_the_mean_of_two_heads_lists_both_and_the_ways_on():
    model = randomise(timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, num_classes=7))
    with pytest.raises(ValueError, match=r"gives its output, \(2, 7\); this one does not") as error:
        find_head(model, torch.randn(2, 3, 32, 32))
    for words in (
        "'head' (192 → 7, on (2, 192))",
        "'head_dist'",
        'find_head(model, example, name="…")',
        "sirc.Head(W, b)",
    ):
        assert words in str(error.value)


def test_a_functional_layer_leaves_nothing_to_see():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 3)

        def forward(self, x):
            return functional.linear(x, self.embedding.weight)

    with pytest.raises(ValueError, match=r"No linear layer ran \(calls of F\.linear"):
        find_head(Tied(), torch.randn(2, 3))


def test_a_layer_pooled_after_it_ran_is_pointed_out():
    squeezenet = torchvision.models.squeezenet1_0(num_classes=7)
    words = r"one row per input; layer 'classifier\.1' ran on \(2, 512, 3, 3\)\. Pool tokens or pixels before"
    with pytest.raises(ValueError, match=words):
        find_head(squeezenet, torch.randn(2, 3, 64, 64))
    with pytest.raises(ValueError, match=words):
        find_head(squeezenet, torch.randn(2, 3, 64, 64), name="classifier.1")


def test_outputs_picked_from_per_token_logits_are_pointed_out():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(6, 4)

        def forward(self, tokens):
            return self.score(tokens)[:, -1]

    with pytest.raises(ValueError, match=r"layer 'score' ran on \(2, 9, 6\)\. Pool tokens"):
        find_head(Model(), torch.randn(2, 9, 6))


def test_a_subclass_that_is_not_linear_is_refused(images):
    class Cosine(nn.Linear):
        def forward(self, x):
            return functional.linear(functional.normalize(x), functional.normalize(self.weight))

    model = Net()
    model.fc = Cosine(5, 4)
    with pytest.raises(ValueError, match=r"must compute W z \+ b; 'fc', a Cosine, gives.*sirc\.Head\(W, b\)"):
        find_head(model, images)


class LoRA(nn.Module):
    """A layer with an update of low rank beside it, as `peft` wraps one."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.base_layer, self.dropout = layer, nn.Dropout(0.5)
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + 2 * self.lora_B(self.lora_A(self.dropout(x)))


def lora():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), LoRA(nn.Linear(6, 4)))


def test_a_head_with_lora_is_the_sum_of_both():
    model, x = lora().train(), torch.randn(5, 3, 2, 2)
    head = find_head(model, x)
    layer = model[3]
    assert head.name == "3.base_layer"
    torch.testing.assert_close(head.weight, layer.base_layer.weight + 2 * layer.lora_B.weight @ layer.lora_A.weight)
    torch.testing.assert_close(head.bias, layer.base_layer.bias)
    assert layer.dropout.training
    assert not is_whole(model, head)
    assert torch.equal(find_head(model, x, name="3.base_layer").weight, head.weight)
    assert is_whole(model, Head(layer.base_layer.weight, layer.base_layer.bias, "3.base_layer"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_logits_of_a_head_with_lora_are_the_model_s_in_any_precision(precision):
    model, x = lora().eval(), torch.randn(40, 3, 2, 2)
    made = sirc.extract(model, [x], precision=precision)
    torch.testing.assert_close(made.logits.float(), model(x), atol=0.05, rtol=0.05)
    head = find_head(model, x)
    torch.testing.assert_close(made.features.float() @ head.weight.T + head.bias, model(x), atol=0.05, rtol=0.05)
    if precision == "bf16":
        made = sirc.Outputs(made.logits.float(), made.features.float(), model(x).argmax(-1))
        model = model.bfloat16()
        sel = sirc.SelectiveClassifier(model, sirc.fit("sirc(msp, l1)", made), "sirc(msp, l1)").set_threshold(0)
        torch.testing.assert_close(sel(x).logits.float(), made.logits, atol=0.05, rtol=0.05)


class Shared(nn.Module):
    """One head for two inputs; the logits are those of the one that runs at this place."""

    def __init__(self, place):
        super().__init__()
        self.body, self.fc, self.place = nn.Linear(6, 5), nn.Linear(5, 3), place
        self.embedding = nn.Embedding(3, 5)
        self.embedding.weight = self.fc.weight  # tied
        self.also = self.fc

    def forward(self, x, other):
        return [self.fc(self.body(one).relu()) for one in (x, other)][self.place]


def test_a_head_of_two_inputs_tied_and_shared_is_found_where_it_runs_last():
    batch = {"x": torch.randn(4, 6), "other": torch.randn(4, 6), "labels": torch.arange(4)}
    assert find_head(Shared(1), batch).name == "fc"
    made = sirc.extract(model := Shared(1).eval(), [{**batch, "labels": torch.arange(4) % 3}])
    torch.testing.assert_close(made.features, model.body(batch["other"]).relu())
    with pytest.raises(ValueError, match=r"must run last .* 'fc' runs again, on \(4, 5\)\. Let the model call it once"):
        find_head(Shared(0), batch)


def test_several_inputs_are_given_as_one_or_by_name():
    model, (x, other) = Shared(1).eval(), torch.randn(2, 4, 6)
    labels = torch.arange(4) % 3
    by_name = sirc.extract(model, [{"x": x, "other": other, "labels": labels}])
    rows = [((a, b), label) for a, b, label in zip(x, other, labels.tolist(), strict=True)]
    for batches in ([((x, other), labels)], [[[x, other], labels]], torch.utils.data.DataLoader(rows, batch_size=2)):
        made = sirc.extract(model, batches)
        torch.testing.assert_close(made.features, by_name.features)
        assert torch.equal(made.labels, labels)
    assert find_head(model, ((x, other), labels)).name == "fc"
    sel = sirc.SelectiveClassifier(model, sirc.Scorer("msp"), "msp").calibrate(
        [((x, other), made.predictions)], recall=0.5
    )
    assert torch.equal(sel([(x, other)]).confidence, sel(x=x, other=other).confidence)
    with pytest.raises(
        ValueError, match=r"Shared\.forward\(x, other\) takes; got 1\..* \(\(a, b\), labels\), or by name in"
    ):
        find_head(model, (x, other, labels))


def test_a_type_error_of_the_model_itself_is_its_own(images):
    def fail(logits, features):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        find_head(Net(fail), images)


@pytest.mark.parametrize(
    "end",
    [
        nn.Sequential(nn.Dropout(0.5), nn.Linear(12, 4)),
        nn.Sequential(nn.Linear(12, 4), nn.Dropout(0.5)),
        nn.Sequential(nn.Unflatten(1, (12, 1, 1)), nn.Conv2d(12, 4, 1), nn.Flatten()),
    ],
)
def test_dropout_and_flatten_around_a_head_change_nothing(end):
    assert find_head(nn.Sequential(nn.Flatten(), end).train(), torch.randn(2, 3, 2, 2)).num_features == 12


def test_the_head_of_stored_outputs_is_the_layer_that_gives_them():
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12)), torch.randn(20, 3, 2, 2)
    stored = sirc.extract(model, [x])
    assert head_of(model, stored).name == head_of(model, stored, name="3").name == "3"
    with pytest.raises(ValueError, match=r"W z \+ b; layer '1' does not\. Pass the layer's arrays"):
        head_of(model, stored, name="1")
    with pytest.raises(ValueError, match=r"W z \+ b; no linear layer of the model does"):
        head_of(lora(), sirc.Outputs(stored.logits))


def test_a_model_must_be_a_module():
    with pytest.raises(ValueError, match=r"must be a torch\.nn\.Module; got function.*sirc\.Head\(W, b\)"):
        find_head(lambda x: x, torch.zeros(2, 3))


def test_features_are_handed_over_once_per_forward(images):
    model = Net(lambda v, z: (v, z)).eval()
    with capture_features(model, "fc") as take:
        for _ in range(2):
            images = images + 1
            _, features = model(images)
            assert torch.equal(take(), features)
        with pytest.raises(ValueError, match="'fc' did not run since"):
            take()
    assert hooks(model) == 0


def test_features_of_a_convolution_are_flattened():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 4, 1), nn.Flatten())
    x = torch.randn(2, 3, 5, 5)
    with capture_features(model, "1") as take:
        model(x)
        torch.testing.assert_close(take(), x.mean((2, 3)))
    model[0] = nn.Identity()
    with capture_features(model, "1") as take:
        model(x)
        with pytest.raises(ValueError, match=r"layer '1' ran on \(2, 3, 5, 5\)"):
            take()


def test_call_model_and_evaluating_are_enough_to_extract(images):
    model = Net().train()
    with evaluating(model):
        first, second = (model_logits(call_model(model, (images, None))) for _ in range(2))
    assert torch.equal(first, second)  # no dropout
    assert not first.requires_grad
    assert model.drop.training


class DLPackOnly:
    """What a JAX or CuPy array has in common with ours."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray, np.ndarray.tolist, DLPackOnly])
def test_a_head_takes_arrays_of_any_kind(kind):
    W, b = np.arange(6, dtype=np.float32).reshape(3, 2), np.ones(3, dtype=np.float32)
    head = Head(kind(W), kind(b), "fc")
    assert (head.num_classes, head.num_features) == (3, 2)
    assert np.array_equal(head.weight.numpy(), W)
    assert np.array_equal(head.bias.numpy(), b)


def test_a_head_is_short_frozen_and_movable():
    head = Head(torch.ones(3, 2, 1, 1), name="head.fc")
    assert repr(head) == "Head('head.fc', 3 classes × 2 features, no bias)"
    assert repr(Head(torch.ones(3, 2), torch.ones(3))) == "Head('', 3 classes × 2 features)"
    assert head.to("cpu").name == "head.fc"
    with pytest.raises(AttributeError):
        head.weight = torch.zeros(3, 2)


@pytest.mark.parametrize(
    ("weight", "bias", "words"),
    [
        (torch.ones(3), None, r"`weight` must have shape \(K, L\).*got \(3,\)"),
        (torch.ones(3, 2, 3, 3), None, r"got \(3, 2, 3, 3\)"),
        (torch.ones(0, 2), None, r"got \(0, 2\)"),
        (torch.ones(3, 2, dtype=torch.int8), None, "`weight` must be float16.*got int8"),
        (
            torch.tensor([[1.0, torch.nan]]),
            None,
            r"`weight` must be finite; got 1 NaN.*\[0, 1\]. Load the weights",
        ),
        (torch.ones(3, 2), torch.tensor([0, 1.0, torch.inf]), "`bias` must be finite; .*Load the weights again"),
        (torch.ones(3, 2), torch.ones(3, dtype=torch.int64), "`bias` must be float16"),
        (
            torch.ones(7, 3),
            torch.ones(3),
            r"each of the 7 rows.*got \(3,\).*looks transposed: pass weight\.T",
        ),
        (torch.ones(7, 3), torch.ones(4), r"got \(4,\)\. Pass both from one layer"),
        (torch.ones(7, 3), torch.ones(7, 1), r"got \(7, 1\)"),
    ],
)
def test_a_head_that_cannot_be_one_is_refused(weight, bias, words):
    with pytest.raises(ValueError, match=words):
        Head(weight, bias)


@pytest.mark.parametrize("shape", [(7, 20), (20, 7), (9, 9)])
def test_the_origin_is_minus_pinv_times_bias(shape):
    rng = np.random.default_rng(0)
    W, b = rng.normal(size=shape), rng.normal(size=shape[0])
    origin = Head(W, b).origin
    assert origin.dtype == torch.float64
    np.testing.assert_allclose(origin, -np.linalg.pinv(W) @ b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-10), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_rounding_of_a_rank_deficient_weight_does_not_move_the_origin(dtype, tol):
    rng = np.random.default_rng(0)
    W = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 200))
    W, b = W - W.mean(0), rng.normal(size=300)
    expected = -np.linalg.pinv(W, rcond=1e-10) @ b
    origin = Head(torch.tensor(W).to(dtype), b).origin.numpy()
    assert np.linalg.norm(origin - expected) <= tol * np.linalg.norm(expected)


def test_half_precision_keeps_the_rank_of_a_wide_head():
    W, b = torch.randn(100, 2048).bfloat16(), torch.randn(100)
    origin = Head(W, b).origin
    torch.testing.assert_close(W.double() @ origin, -b.double(), rtol=1e-9, atol=1e-9)


def awkward_heads():
    rng = np.random.default_rng(0)
    for shape in ((20, 48), (48, 20), (32, 32), (1, 8), (8, 1)):
        W = rng.normal(size=shape)
        yield "plain", W
        if 1 not in shape:
            yield "rows sum to 0", W - W.mean(0)
            yield "rows sum to nearly 0", W - 0.999 * W.mean(0)
            yield "twice the same class", np.vstack([W[:1], W[:-1]])
            yield "a class without weights", W * (np.arange(len(W)) != 3)[:, None]
            yield "few directions", W[:, :3] @ rng.normal(size=(3, shape[1]))
            yield "columns of many sizes", W * np.logspace(0, -5, shape[1])
    yield "zero", np.zeros((4, 6))
    yield "large", 1e30 * rng.normal(size=(4, 6))
    yield "small", 1e-30 * rng.normal(size=(4, 6))
    for name, scale in (("squares below float64", 1e-170), ("squares almost below", 1e-100), ("squares above", 1e170)):
        W = rng.normal(size=(4, 6))
        yield name, scale * (W - W.mean(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_origin_is_that_of_the_singular_values_for_awkward_heads(dtype):
    for name, matrix in awkward_heads():
        W = torch.tensor(matrix).to(dtype)
        if name.startswith("squares") and dtype != torch.float64:  # which alone has such numbers
            continue
        b = torch.tensor(np.random.default_rng(1).normal(size=len(matrix))).to(dtype)
        eps = np.finfo(np.float64 if dtype == torch.float64 else np.float32).eps
        rcond = max(torch.finfo(dtype).eps, max(W.shape) * eps)
        expected = -np.linalg.pinv(W.double().numpy(), rcond=rcond) @ b.double().numpy()
        scale = np.abs(matrix).max() or 1.0  # so that squares stay within float64
        apart = np.linalg.norm(scale * (Head(W, b).origin.numpy() - expected))
        assert apart <= 1e-10 * np.linalg.norm(scale * expected), (name, W.shape)


def test_without_bias_the_origin_is_zero():
    assert torch.equal(Head(torch.randn(3, 5)).origin, torch.zeros(5, dtype=torch.float64))


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_head_is_saved_and_loaded(tmp_path, ending, bias):
    weight = torch.randn(3, 5, requires_grad=True)
    head = Head(weight, torch.randn(3) if bias else None, "fc")
    file = tmp_path / f"head.{ending}"
    head.save(file)
    again = Head.load(file)
    assert torch.equal(again.weight, weight)
    assert again.bias is None if head.bias is None else torch.equal(again.bias, head.bias)
    assert again.name == ("fc" if ending == "safetensors" else "")
    assert torch.equal(again.origin, head.origin)
    with pytest.raises(FileExistsError):
        head.save(file)
    head.save(file, overwrite=True)


def test_a_head_is_found_beside_outputs_and_its_absence_is_told(tmp_path):
    np.savez(tmp_path / "train.npz", logits=np.ones((2, 3)), head_weight=np.ones((3, 5)), weight=np.ones((9, 9)))
    assert Head.load(tmp_path / "train.npz").weight.shape == (3, 5)
    np.savez(tmp_path / "none.npz", logits=np.ones((2, 3)), weight=np.ones((9, 9)))
    with pytest.raises(
        ValueError, match=r"none.npz' must hold `head_weight` \(and .*it has `logits`, `weight`. Rename"
    ):
        Head.load(tmp_path / "none.npz")
    (tmp_path / "junk.npz").write_text("junk", encoding="utf-8")
    with pytest.raises(ValueError, match=r"junk.npz' cannot be trusted: not a whole .npz file \(it is not an archive"):
        Head.load(tmp_path / "junk.npz")
    write_safetensors(tmp_path / "net.safetensors", {f"layer{i}.weight": torch.ones(3, 5) for i in range(99)}, {})
    with pytest.raises(ValueError, match=r"must hold `weight` .*; it has `layer0.weight`, .{,70}…. Rename the arrays"):
        Head.load(tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"a path for a head must end in `.npz` or `.safetensors`; got 'head.pt'"):
        Head(np.ones((3, 5))).save("head.pt")
    with pytest.raises(FileNotFoundError):
        Head.load(tmp_path / "nowhere.npz")
