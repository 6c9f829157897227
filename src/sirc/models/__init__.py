"""Networks: built by name, with their weights and preprocessing; their final layer and the features it receives.

Example:
    >>> from sirc import models
    >>> model = models.build("sirc.models.small:resnet", num_classes=10)
    >>> len(models.fingerprint(model))
    32
"""

from sirc.models.builders import build, check_settings, named, preprocess_of, shared_preprocess
from sirc.models.calling import (
    LABEL_KEYS,
    call_model,
    copy_of,
    evaluating,
    is_parallel,
    map_inputs,
    model_logits,
    rows_of,
    unwrap,
)
from sirc.models.ensemble import Ensemble
from sirc.models.feature_hook import FeatureHook, capture_features
from sirc.models.last_layer import features_at, find_head, head_of
from sirc.models.stems import Stem
from sirc.models.weights import fingerprint, load_weights, save_weights

__all__ = [
    "LABEL_KEYS",
    "Ensemble",
    "FeatureHook",
    "Stem",
    "build",
    "call_model",
    "capture_features",
    "check_settings",
    "copy_of",
    "evaluating",
    "features_at",
    "find_head",
    "fingerprint",
    "head_of",
    "is_parallel",
    "load_weights",
    "map_inputs",
    "model_logits",
    "named",
    "preprocess_of",
    "rows_of",
    "save_weights",
    "shared_preprocess",
    "unwrap",
]
