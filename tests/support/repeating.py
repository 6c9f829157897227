"""Networks on inputs that repeat, as blank frames and test cards do: classifiers whose threshold is a tied value."""

import numpy as np
import torch
from torch import nn

import sirc
from sirc.models.small import resnet


def mlp(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)
    ).eval()


def small_resnet(seed):
    torch.manual_seed(seed)
    return resnet(5, width=8).eval()


def repeating(net, dtype=torch.float32, rows=300, batch=64, device="cpu"):
    """A classifier that promises to accept 95% of ID✓, on six images that repeat, and these images."""
    g = torch.Generator().manual_seed(0)
    fitting, prototypes = torch.randn(200, 3, 8, 8, generator=g), torch.randn(6, 3, 8, 8, generator=g)
    x = prototypes[torch.randint(0, 6, (rows,), generator=g)].to(device, dtype)
    net = net.to(device, dtype)
    with torch.no_grad():
        labels = net(x).argmax(-1)
    head = sirc.find_head(net, x[:2])
    train = sirc.extract(net, [fitting.to(device, dtype)], head=head)
    scorer = sirc.fit("sirc(entropy, residual)", train, head=head)
    batches = [(x[i : i + batch], labels[i : i + batch]) for i in range(0, rows, batch)]
    made = sirc.SelectiveClassifier(net, scorer, "sirc(entropy, residual)", head=head)
    return made.calibrate(batches, recall=0.95, delta=0.05), x


def shares(decide, x):
    """The shares that are accepted one at a time, seven at a time and 64 at a time."""
    return [np.concatenate([decide(part) for part in x.split(size)]).mean() for size in (1, 7, 64)]
