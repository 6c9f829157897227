"""Errors and warnings with a name of their own; all other bad input is a plain `ValueError`."""

from typing import Literal

OnError = Literal["stop", "skip"]
"""The two ways to go on at an image that cannot be read, or at a spec that cannot be fitted."""


class NotFittedError(ValueError):
    """A score that learns from ID training data was asked for a value before it was fitted."""


class StoreError(ValueError):
    """A stored file is incomplete, damaged, or belongs to another model."""


class ConfigError(ValueError):
    """An experiment's TOML has an unknown key or a bad value, or names something that is not there."""


class ImageError(ValueError):
    """An image cannot be read."""


class DataWarning(UserWarning):
    """Data that can be computed with, but are probably not what was meant, or do not suffice for all that was asked."""
