"""Warnings about data, shown at the user's line."""

import os
import sys
import warnings
from pathlib import Path

from sirc.errors import DataWarning

_HOME = f"{Path(__file__).parents[1]}{os.sep}"


def warn(text: str) -> None:
    """Warn at the user's line that called sirc, however deep the call is."""
    frame, depth, entry = sys._getframe(), 1, 1
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
        entry = depth if frame.f_code.co_filename.startswith(_HOME) else entry
    warnings.warn(text, DataWarning, stacklevel=entry + 1)
