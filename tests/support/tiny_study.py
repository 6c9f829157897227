"""A study that takes seconds: a network of 200 pixels, three classes, two seeds."""

from pathlib import Path

from support.tiny_images import write_images

MODEL = """
from torch import nn

def small(num_classes=3):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(200, 32), nn.ReLU(),
        nn.Linear(32, num_classes),
    )
"""

TOML = """
name = "tiny"
seeds = [1, 2]

[model]
name = "tiny_model:small"
num_classes = 3

[preprocess]
resize = 12
crop = 12

[data.train]
dataset = "folder"
path = "images"

[data.test]
dataset = "folder"
path = "held-out"

[data.ood.Grey]
dataset = "folder"
path = "grey"

[data.ood.Noise]
dataset = "noise"
count = 6

[train]
epochs = 2
batch_size = 8
lr = 0.02
milestones = [1]
workers = 0

[extract]
batch_size = 5
workers = 0
shard_size = 8

[fit]
specs = ["msp", "sirc(msp, residual)", "mahalanobis"]
crossfit = 3
"""


def write_short_study(counts, changes=None):
    """`tiny.toml` in the current folder, of one slow epoch, with its network and so many images by folder."""
    for seed, (name, count) in enumerate(counts.items()):
        write_images(Path("data", name).resolve(), count=count, seed=seed)
    Path("tiny_model.py").write_text(MODEL, encoding="utf-8")
    text = TOML
    for old, new in {"epochs = 2": "epochs = 1", "lr = 0.02": "lr = 0.0005", **(changes or {})}.items():
        text = text.replace(old, new)
    Path("tiny.toml").write_text(text, encoding="utf-8")
