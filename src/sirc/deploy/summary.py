"""The summary of a calibrated classifier: what was done, what it promises and what it cannot promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sirc._utils.text import percent, shorten
from sirc.data import printable
from sirc.deploy.saved import SAMPLE, calibration_sample

if TYPE_CHECKING:
    from sirc.deploy.selective import SelectiveClassifier


def summary(guard: SelectiveClassifier) -> str:
    """Summarise a calibrated classifier in about five lines."""
    threshold, scorer = guard._check_threshold(), guard.scorer
    fitted = f", fitted on {scorer.fitted_rows:,} training rows" if scorer.fitted_rows else ""
    reads = guard.scoring.needs_features and guard.head_name
    layer = f" with the features that '{shorten(reads)}' receives" if reads else ""
    accepts = "It accepts nothing: no threshold keeps the promise."
    if threshold.feasible:
        accepts = f"It accepts confidences of at least {threshold.value:.6g}{_of_validation(guard, threshold.value)}."
    promise = threshold.guarantee.partition(" (The plain")[0]
    seen = "only some" if "ood" in threshold.sizes else "none"
    errors = "" if threshold.rule == "risk" else "how many errors it accepts; "
    lines = [
        f'{type(guard.model).__name__} that may say "I don\'t know": score `{guard.spec}`{fitted}{layer}.',
        accepts,
        f"Promise: {promise[:1].upper()}{promise[1:]}",
        *guard.remarks,
        f"Cannot promise: how much OOD input it rejects, as its calibration saw {seen}; {errors}and anything about "
        "inputs unlike the validation rows. `sirc.monitor` watches for those.",
    ]
    return "\n".join(map(printable, lines))  # class names may have control characters


def _of_validation(guard: SelectiveClassifier, threshold: float) -> str:
    """Say what is accepted of the validation rows; empty if it is not known which of them are right."""
    if guard.calibration is None or guard.calibration_correct is None:
        return ""
    sample = "a sample of " if len(guard.calibration) >= SAMPLE else ""
    # Only of the rows that a file keeps, so that a loaded guard prints the same.
    accepted = calibration_sample(guard.calibration) >= threshold
    right = calibration_sample(guard.calibration_correct).bool()
    recall, errors, all_errors = (
        percent(float(rows.double().mean())) for rows in (accepted[right], ~right[accepted], ~right)
    )
    return (
        f": of {sample}{len(right):,} validation rows, {recall} of the {int(right.sum()):,} that it gets right (ID✓), "
        f"and {int((accepted & ~right).sum()):,} of the {int((~right).sum()):,} that it gets wrong (ID✗). Of what it "
        f"accepts {errors} is wrong, of all {all_errors}"
    )
