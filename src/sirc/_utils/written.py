"""The files that this process wrote, which a command reports when it is stopped."""

from pathlib import Path

WRITTEN: set[Path] = set()
"""Absolute paths, which `atomic_write` adds to."""
