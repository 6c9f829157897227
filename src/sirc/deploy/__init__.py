"""Using a score in production: thresholds with guarantees, the selective classifier, ONNX, service, monitor."""

from sirc.deploy.predict import predict_folder, save_decisions
from sirc.deploy.saved import read
from sirc.deploy.selective import Decision, SelectiveClassifier

__all__ = ["Decision", "SelectiveClassifier", "predict_folder", "read", "save_decisions"]
