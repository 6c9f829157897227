from torch import nn


def small(num_classes=3):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(100, 16),
        nn.ReLU(),
        nn.Linear(16, num_classes),
    )
