"""Networks: built by name, their weights, and their final layer, found by watching the model run."""

from sirc.models.builders import build, preprocess_of
from sirc.models.head import capture_features, find_head
from sirc.models.weights import fingerprint, load_weights, save_weights

__all__ = [
    "Head",
    "build",
    "capture_features",
    "find_head",
    "fingerprint",
    "load_weights",
    "preprocess_of",
    "save_weights",
]
