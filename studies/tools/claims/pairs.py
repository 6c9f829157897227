"""Differences between pairs of scores, network by network, as the claims count and show them."""

from __future__ import annotations

from collections.abc import Sequence

from studies.tools.claims.verdicts import YES, above, below
from studies.tools.families import SIRC, first_of
from studies.tools.study import Interval, Study, named, table


def differences(
    study: Study, pairs: Sequence[tuple[str, str]], negative: str, metric: str
) -> list[tuple[str, str, str, Interval]]:
    """Model, score, baseline and interval, where measured."""
    found = [(m, s, b, study.interval(m, s, b, negative, metric)) for m in study.models for s, b in pairs]
    return [(m, s, b, interval) for m, s, b, interval in found if interval is not None]


def by_network(study: Study, pairs: Sequence[tuple[str, str]], negative: str, metric: str) -> str:
    """A row for each pair: the paper's range, and the difference on each network."""
    rows = []
    for score, baseline in pairs:
        cells = [study.interval(model, score, baseline, negative, metric) for model in study.shown]
        if any(cells):
            printed = study.printed_range(score, baseline, negative, metric)
            rows.append([named(score), printed, *cells])
    return table(["", "paper", *study.shown], rows)


def signs(study: Study, model: str, score: str, baseline: str, metric: str = "auroc") -> tuple[int, int]:
    """On how many OOD sets a score is surely better, and surely worse."""
    found = [study.interval(model, score, baseline, name, metric) for name in study.sets]
    better, worse = (above, below) if metric == "auroc" else (below, above)
    known = [interval for interval in found if interval is not None]
    return sum(better(i) == YES for i in known), sum(worse(i) == YES for i in known)


def printed_signs(study: Study, model: str, score: str, baseline: str) -> tuple[int, int]:
    """The same in the paper's table, without intervals."""
    found = [study.printed_difference(model, score, baseline, name, "auroc") for name in study.printed_sets]
    return sum(d > 0 for d in found), sum(d < 0 for d in found)


def pairs_of_sirc() -> list[tuple[str, str]]:
    """The paper's six, each with its S1."""
    return [(score, str(first_of(score))) for score in SIRC]
