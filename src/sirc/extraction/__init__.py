"""Extraction: run a network over images, into memory or into a store that can be resumed."""

from sirc.extraction.from_device import CachedSet, raise_fatal
from sirc.extraction.pipeline import extract
from sirc.extraction.runner import ran_in_half
from sirc.extraction.writer import known_weights

__all__ = ["CachedSet", "extract", "known_weights", "raise_fatal", "ran_in_half"]
