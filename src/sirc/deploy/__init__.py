"""Scores in production: the guard, thresholds with guarantees, the selective classifier; ONNX, services, monitor."""

from sirc.deploy import monitor, threshold
from sirc.deploy.batch_callables import DecideImages, ScoreOutputs
from sirc.deploy.guards import guard, load_guard
from sirc.deploy.predict import predict_folder, save_decisions
from sirc.deploy.saved import calibration_of, read
from sirc.deploy.selective import Decision, SelectiveClassifier
from sirc.deploy.triton import write_triton

__all__ = [
    "DecideImages",
    "Decision",
    "ScoreOutputs",
    "SelectiveClassifier",
    "calibration_of",
    "guard",
    "load_guard",
    "monitor",
    "predict_folder",
    "read",
    "save_decisions",
    "threshold",
    "write_triton",
]
