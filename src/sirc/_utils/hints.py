"""Hints in error messages: the known name that is closest to an unknown one."""

import difflib
from collections.abc import Iterable


def closest(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """` Did you mean …?`, or an empty text if no name is close."""
    match = closest_match(word, known, cutoff=cutoff)
    return f" Did you mean `{match}`?" if match else ""


def closest_match(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most similar to `word`, in upper or lower case; None if no name is close."""
    folded = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(str(word).strip().lower(), folded, n=1, cutoff=cutoff)
    return folded[matches[0]] if matches else None
