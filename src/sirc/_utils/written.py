"""Written files: those that this process wrote, for a command that is stopped to say what stays."""

from pathlib import Path

WRITTEN: set[Path] = set()
"""Absolute paths, which `atomic_write` adds to."""
