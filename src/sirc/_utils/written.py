"""The files that this process wrote, which a stopped command reports."""

from pathlib import Path

WRITTEN: set[Path] = set()
"""Absolute paths, which `atomic_write` adds to."""
