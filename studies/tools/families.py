"""Families of scores: the paper's, its detectors, and every score of the project by its role in a combination."""

from __future__ import annotations

from collections.abc import Sequence

from sirc.experiment import PAPER_SPECS
from sirc.scores import parse

BASELINE = "msp"
SOFTMAX = ("msp", "doctor", "entropy")
SIRC = tuple(spec for spec in PAPER_SPECS if spec.startswith("sirc("))
SECOND = ("l1", "residual")
BEST = "sirc(entropy, residual)"  # the one that the paper follows through α and β
PAPER = (*SIRC, *(spec for spec in PAPER_SPECS if spec not in SIRC))
SWEPT = (BEST, "sirc(msp, residual)", "entropy", "energy", "vim")
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of α, with β at 0.5, and of β, with α at 0.5
SETTINGS = tuple(dict.fromkeys([*((a, 0.5) for a in LEVELS), *((0.5, b) for b in LEVELS)]))

ALONE, FIRST, WITH_MSP, WITH_ENTROPY, OTHER = "alone", "as S1", "as S2 of MSP", "as S2 of −H", "other combinations"
FAMILIES = (ALONE, FIRST, WITH_MSP, WITH_ENTROPY, OTHER)


def families(scores: Sequence[str]) -> dict[str, list[str]]:
    """The scores of each family; `sirc(msp, residual)` is in two of them."""
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for score in scores:
        spec = parse(score)
        parts = [str(part) for part in spec.args]
        plain = spec.name == "sirc" and len(parts) == 2 and not spec.options
        if not parts or score == "vim":
            found[ALONE].append(score)
        elif not plain:
            found[OTHER].append(score)
        else:
            homes = (
                (FIRST, parts[1] == "residual"),
                (WITH_MSP, parts[0] == "msp"),
                (WITH_ENTROPY, parts[0] == "entropy"),
            )
            for family in [name for name, fits in homes if fits] or [OTHER]:
                found[family].append(score)
    return found


def first_of(score: str) -> str | None:
    """S1 of a combination that has one."""
    spec = parse(score)
    return str(spec.args[0]) if spec.name in ("sirc", "additive", "bayes") else None


def plain_of(score: str) -> str | None:
    """The plain `sirc` of the same S1 and S2, for any other combination of them."""
    spec = parse(score)
    if spec.name not in ("sirc", "additive", "bayes"):
        return None
    plain = f"sirc({', '.join(map(str, spec.args))})"
    return None if plain == score else plain
