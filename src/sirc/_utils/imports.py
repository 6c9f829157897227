"""Imports of the user's own modules from the current folder."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def current_folder() -> Iterator[None]:
    """Let modules in the current folder be imported, as `python script.py` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
