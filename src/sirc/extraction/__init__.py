"""Running a network over images to get its outputs, into memory or into a store that survives a kill."""

from sirc.extraction.from_device import HeldSet, refuse_fatal
from sirc.extraction.pipeline import extract
from sirc.extraction.writer import known_weights

__all__ = ["HeldSet", "extract", "known_weights", "refuse_fatal"]
