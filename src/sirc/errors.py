"""Errors and warnings with a name of their own; all other bad input is a plain `ValueError`."""

from typing import Literal

OnError = Literal["stop", "skip"]
"""What to do about an image that cannot be read, or a spec that cannot be fitted."""


class NotFittedError(ValueError):
    """A score that learns from ID training data was asked for a value before it was fitted.

    Example:
        >>> import torch
        >>> import sirc
        >>> rows = sirc.Outputs(torch.randn(4, 3), features=torch.randn(4, 8))
        >>> try:
        ...     sirc.Scorer("knn")(rows)
        ... except sirc.NotFittedError:
        ...     print("fit it first")
        fit it first
    """


class StoreError(ValueError):
    """A stored file is incomplete, damaged, or belongs to another model.

    Example:
        >>> from pathlib import Path
        >>> import sirc
        >>> _ = Path("guard.safetensors").write_bytes(b"not a guard")
        >>> try:
        ...     sirc.Outputs.load("guard.safetensors")
        ... except sirc.StoreError:
        ...     print("not a file of outputs")
        not a file of outputs
    """


class ConfigError(ValueError):
    """An experiment's TOML has an unknown key or a bad value, or names something that is not there."""


class ImageError(ValueError):
    """An image cannot be read."""


class DataWarning(UserWarning):
    """Data that are probably wrong, or too few for what was asked; the work goes on.

    Example:
        Warnings of this kind can be made errors, in tests or in a pipeline that nobody watches:

        >>> import warnings
        >>> import sirc
        >>> warnings.simplefilter("error", category=sirc.DataWarning)
        >>> warnings.warn("labels look shifted by one", sirc.DataWarning)
        Traceback (most recent call last):
        sirc.errors.DataWarning: labels look shifted by one
    """
