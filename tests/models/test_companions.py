"""Models of the libraries people use, with random weights: the head is found, and a guard made, kept and exported."""

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import sirc
from sirc.deploy.onnx import OnnxGraph
from sirc.models import fingerprint, unwrap
from sirc.models.last_layer import is_whole

pytestmark = pytest.mark.slow  # the libraries take seconds to import
K = 4


@torch.no_grad()
def trained(model, batch):
    """The model with logits of size one that favour no class, as an untrained one does."""
    head = model.eval().get_submodule(sirc.find_head(model, batch).name)
    head.weight /= sirc.extract(model, [batch]).logits.std(0).mean()
    head.bias -= sirc.extract(model, [batch]).logits.mean(0)
    return model


def labelled(model, batch):
    """The batch with the labels that the model gives it, and some others."""
    logits = sirc.extract(model, [batch]).logits
    return {**batch, "labels": (logits + torch.randn_like(logits) / 10).argmax(-1)}


def vision(name):
    import transformers

    side = {"image_size": 32, "patch_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 16}
    options = {
        "ViT": {**side, "intermediate_size": 32},
        "Dinov2": side,
        "ConvNext": {"hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1]},
        "Swin": {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4},
    }[name]
    config = getattr(transformers, f"{name}Config")(**options, num_labels=K)
    return getattr(transformers, f"{name}ForImageClassification")(config)


def pixels(count):
    return {"pixel_values": torch.randn(count, 3, 32, 32)}


@pytest.mark.parametrize(("name", "width"), [("ViT", 16), ("Dinov2", 32), ("ConvNext", 16), ("Swin", 16)])
def test_image_models_of_transformers_are_guarded(name, width):
    model = trained(vision(name), pixels(50))
    head = sirc.find_head(model, pixels(2))
    assert (head.name, head.num_classes, head.num_features) == ("classifier", K, width)
    guard = sirc.guard(model, [labelled(model, pixels(200))], [labelled(model, pixels(100))])
    batch = pixels(4)
    with torch.no_grad():
        torch.testing.assert_close(guard(batch).logits, model(**batch).logits)
    assert torch.equal(guard(batch["pixel_values"]).accepted, guard(**batch).accepted)


def distilbert():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    options = {"vocab_size": 50, "dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2, "num_labels": K}
    return DistilBertForSequenceClassification(DistilBertConfig(**options))


def tokens(count):
    mask = torch.ones(count, 8, dtype=torch.long)
    mask[::2, 5:] = 0
    return {"input_ids": torch.randint(50, (count, 8)), "attention_mask": mask}


def test_text_with_a_mask_is_guarded_and_exported(tmp_path):
    from transformers import BatchEncoding

    model = trained(distilbert(), tokens(50))
    guard = sirc.guard(model, [labelled(model, tokens(200))], [labelled(model, tokens(100))])
    assert guard.head_name == "classifier"
    batch = tokens(6)
    assert torch.equal(guard(BatchEncoding(batch)).confidence, guard(**batch).confidence)  # what a tokeniser gives
    guard.export_onnx(tmp_path / "guard.onnx", batch)
    graph = OnnxGraph(tmp_path / "guard.onnx")
    assert graph.inputs == ["input_ids", "attention_mask"]
    torch.testing.assert_close(torch.from_numpy(graph(batch).confidence), guard(batch).confidence, rtol=1e-4, atol=1e-4)


LORA = {
    "of the head": ({"target_modules": ["q_lin", "classifier"]}, "classifier.base_layer"),
    "with a bias": ({"target_modules": ["classifier"], "lora_bias": True}, "classifier.base_layer"),
    "DoRA": ({"target_modules": ["classifier"], "use_dora": True}, "classifier.base_layer"),
    "beside a whole head": (
        {"target_modules": ["q_lin"], "modules_to_save": ["classifier"]},
        "classifier.modules_to_save.default",
    ),
}


@pytest.mark.parametrize("kind", LORA)
@torch.no_grad()
def test_the_head_that_peft_wraps_is_found_with_what_is_added(kind, tmp_path):
    from peft import LoraConfig, get_peft_model

    options, name = LORA[kind]
    model = get_peft_model(distilbert(), LoraConfig(**options, init_lora_weights=False))
    model = trained(model, tokens(50))
    batch = tokens(10)
    head = sirc.find_head(model, batch)
    assert head.name == f"base_model.model.{name}"
    assert is_whole(model, head) == name.endswith("default")
    made = sirc.extract(model, [batch])
    torch.testing.assert_close(made.features @ head.weight.T + head.bias, model(**batch).logits, rtol=1e-4, atol=1e-4)
    named = sirc.find_head(model, batch, name=head.name)  # not the layer inside alone
    torch.testing.assert_close(named.weight, head.weight)
    guard = sirc.guard(model, [labelled(model, tokens(200))], [labelled(model, tokens(100))], delta=None)
    guard.save(tmp_path / "guard.safetensors")
    again = sirc.load_guard(tmp_path / "guard.safetensors", model)
    assert torch.equal(again(batch).confidence, guard(batch).confidence)
    if name.endswith("base_layer"):
        inside = r"'base_model\.model\.classifier' is peft's \w+ with 'base_model\.model\.classifier\.base_layer'"
        with pytest.raises(ValueError, match=inside):
            sirc.find_head(model, batch, name="base_model.model.classifier")


@pytest.fixture
def yolo(monkeypatch):
    monkeypatch.setattr(Image, "open", Image.open)  # which Ultralytics replaces, for every test that would follow
    from ultralytics import YOLO

    model = YOLO("yolo11n-cls.yaml")
    for layer in model.model.modules():
        layer.momentum = 1.0  # so that one batch is all that batch norms learn from
    model.model.train()(torch.randn(64, 3, 32, 32))
    trained(model.model, torch.randn(50, 3, 32, 32))
    return model


@pytest.mark.filterwarnings("ignore:typical training rows")  # of an untrained network
def test_ultralytics_gives_its_logits_not_its_probabilities(yolo, tmp_path):
    network, x = yolo.model, torch.randn(5, 3, 32, 32)
    assert unwrap(yolo) is network
    assert sirc.find_head(yolo, x).name == sirc.find_head(network, x).name == "model.10.linear"
    with torch.no_grad():
        probabilities, logits = network(x)
    made = sirc.extract(yolo, [x])
    assert torch.equal(made.logits, logits)
    torch.testing.assert_close(made.logits.softmax(-1), probabilities)
    rows = torch.randn(160, 3, 32, 32)
    train, val = (TensorDataset(x, sirc.extract(network, [x]).predictions) for x in (rows, -rows))
    guard = sirc.guard(yolo, train, val, score="sirc(msp, l1)")
    assert torch.equal(guard(x).logits, logits)
    assert fingerprint(yolo) == fingerprint(network)
    guard.save(tmp_path / "guard.safetensors")
    assert sirc.load_guard(tmp_path / "guard.safetensors", yolo).model is network  # whose `train` does not train


def test_ultralytics_prepares_images_as_the_page_says():
    from PIL import Image
    from ultralytics.data.augment import classify_transforms

    from sirc.data import Preprocess

    image = Image.effect_noise((90, 60), 80).convert("RGB")
    ours = Preprocess(resize=32, crop=32, mean=(0, 0, 0), std=(1, 1, 1)).test()(image)
    torch.testing.assert_close(ours, classify_transforms(32)(image), atol=2 / 255, rtol=0)


def test_a_lightning_module_is_a_model_like_others():
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, K))

        def forward(self, x):
            return self.network(x)

    assert sirc.find_head(Lit(), torch.randn(2, 6)).name == "network.3"
