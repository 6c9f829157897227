"""Outputs of a model on a dataset, in memory or in a store on disk, and the head that computed them."""

from sirc.outputs.agreement import warn_of_labels, warn_of_store
from sirc.outputs.head import Head
from sirc.outputs.outputs import Outputs
from sirc.outputs.store import STORE_FILE, OutputStore, Overwrite

__all__ = ["STORE_FILE", "Head", "OutputStore", "Outputs", "Overwrite", "warn_of_labels", "warn_of_store"]
