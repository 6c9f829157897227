"""A study that takes seconds: a network of 200 pixels, three classes, two seeds."""

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
