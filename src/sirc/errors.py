"""The two errors that deserve a name of their own; all other bad input is a plain `ValueError`."""


class NotFittedError(ValueError):
    """A score that learns from ID training data was asked for a value before it was fitted."""


class StoreError(ValueError):
    """A stored file is incomplete, damaged, or belongs to another model."""
