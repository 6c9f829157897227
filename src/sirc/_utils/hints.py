"""Hints in error messages: the known name that an unknown one is closest to."""

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str:
    """Say ` Did you mean …?`, or nothing where nothing is near."""
    folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), folded, n=1)
    return f" Did you mean `{folded[near[0]]}`?" if near else ""
