"""Outputs of a model on a dataset, in memory or in a store on disk, and the head that computed them."""

from sirc.outputs.agreement import doubt_of_store, labels_checked, warn_of_labels
from sirc.outputs.head import HEAD_FORMAT, Head, read_head
from sirc.outputs.outputs import Outputs
from sirc.outputs.store import STORE_FILE, OutputStore, Overwrite

__all__ = [
    "HEAD_FORMAT",
    "STORE_FILE",
    "Head",
    "OutputStore",
    "Outputs",
    "Overwrite",
    "doubt_of_store",
    "labels_checked",
    "read_head",
    "warn_of_labels",
]
