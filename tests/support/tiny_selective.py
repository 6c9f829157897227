"""A calibrated classifier small enough to be exported in every test session, and images for it."""

import io

import numpy as np
import onnx
import torch
from PIL import Image
from torch import nn

import sirc
from sirc import SelectiveClassifier
from sirc.data.preprocess import Preprocess
from sirc.deploy import onnx as graphs

SIDE = 16
CLASSES = ["red", "green", "blue"]
SPEC = "sirc(entropy, residual)"
NETWORK = """
from support.tiny_selective import calibrated

def network(num_classes):
    return calibrated().model
"""  # a module by which commands find the network
PREPROCESS = Preprocess(resize=SIDE, crop=SIDE, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def pixels(number, height=24, width=24):
    """Noise with one colour stronger."""
    random = np.random.default_rng(number)
    found = random.integers(0, 130, (height, width, 3))
    found[..., number % 3] += random.integers(0, 120)
    return found.astype(np.uint8)


def prepared(count):
    """Such images as the network takes them, (count, 3, H, W)."""
    prepare = PREPROCESS.test()
    return np.stack([prepare(Image.fromarray(pixels(number))).numpy() for number in range(count)])


def encoded(number, kind="PNG", times=1, **options):
    """The bytes of an image, each of its pixels repeated in both directions."""
    file = io.BytesIO()
    Image.fromarray(pixels(number).repeat(times, 0).repeat(times, 1)).save(file, kind, **options)
    return file.getvalue()


def calibrated(preprocess=PREPROCESS, classes=CLASSES):
    """A classifier that accepts about half of these images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)
    ).eval()
    prepare = PREPROCESS.test()
    x = torch.stack([prepare(Image.fromarray(pixels(i))) for i in range(400)])
    with torch.no_grad():
        features = model[:-1](x)
        logits = model[-1](features)
    labels = torch.where(torch.arange(400) % 4 > 0, logits.argmax(-1), (logits.argmax(-1) + 1) % 3)
    outputs = sirc.Outputs(logits, features, labels)
    head = sirc.find_head(model, x[:2])
    scorer = sirc.fit(SPEC, outputs[:200], head=head)
    made = SelectiveClassifier(model, scorer, SPEC, head=head, classes=classes, preprocess=preprocess)
    return made.calibrate(outputs[200:], coverage=0.5, delta=0.05)


def exported(path):
    """The same as a graph."""
    calibrated().export_onnx(path, torch.randn(3, 3, SIDE, SIDE))
    return path


def described(graph, path, **options):
    """The graph, with the description that a classifier with these options would have; exporting one takes seconds."""
    model = onnx.load(graph)
    onnx.helper.set_model_props(model, {graphs._FACTS: graphs.described(calibrated(**options))})
    data = model.SerializeToString()
    path.write_bytes(data + graphs._seal(data))
    return path
