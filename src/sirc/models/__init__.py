"""Networks: built by name, their weights, and their final layer, found by watching the model run."""

from sirc.models.builders import build, preprocess_of
from sirc.models.calling import LABEL_KEYS, call_model, evaluating, model_logits, unwrap
from sirc.models.feature_hook import Tap
from sirc.models.head import capture_features, find_head
from sirc.models.stems import Stem
from sirc.models.weights import fingerprint, load_weights, save_weights

__all__ = [
    "LABEL_KEYS",
    "Stem",
    "Tap",
    "build",
    "call_model",
    "capture_features",
    "evaluating",
    "find_head",
    "fingerprint",
    "load_weights",
    "model_logits",
    "preprocess_of",
    "save_weights",
    "unwrap",
]
