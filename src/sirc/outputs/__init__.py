"""What a model said about a dataset: logits, features and labels in memory or in a store, and its final layer."""

from sirc.outputs.head import Head
from sirc.outputs.meta import FILE
from sirc.outputs.outputs import Outputs
from sirc.outputs.store import OutputStore

__all__ = ["FILE", "Head", "OutputStore", "Outputs"]
