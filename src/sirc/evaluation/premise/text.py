"""Text of a check for the terminal: sentences and aligned columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from sirc._utils.text import aligned, percent
from sirc.evaluation.inputs import MEAN, WRONG
from sirc.evaluation.premise.measures import HALF, Pair, Second
from sirc.metrics import Estimate


def report_text(
    pairs: Sequence[Pair],
    verdicts: Mapping[str, str],
    recommended: tuple[str, str],
    sizes: Mapping[str, int],
    level: float,
) -> str:
    """The whole report: sizes, the verdict on each S2 with its figures, and the recommendation."""
    ood = ", ".join(f"{name} {count:,}" for name, count in sizes.items() if name not in ("correct", "wrong"))
    lines = [
        f"Does SIRC's premise hold? ID data: {sizes['correct']:,} right, {sizes['wrong']:,} wrong predictions. "
        f"OOD data: {ood or 'none'}. Intervals: {100 * level:g}%.",
    ]
    for s2, verdict in verdicts.items():
        facts = _facts([pair for pair in pairs if pair.s2 == s2])
        lines += ["", f"{s2}: {verdict}", *(f"  {line}" for line in facts)]
    lines += ["", f"Recommended: {recommended[0]}", f"  {recommended[1]}"]
    return "\n".join(lines)


def _facts(pairs: Sequence[Pair]) -> Iterator[str]:
    for second in pairs[0].seconds:
        yield from _of_second(second)
    has_wrong, has_ood = WRONG in pairs[0].auroc, MEAN in pairs[0].auroc
    if not pairs[0].variations:
        yield "a and b are not known here: pass the scorer for the share of ID rows below a and the sensitivity to both"
    columns = [["with S1", *(pair.s1 for pair in pairs)]]
    if has_wrong:
        columns.append(["ID✗|ID✓: S1", *(percent(pair.auroc_s1[WRONG].value) for pair in pairs)])
        columns.append(["SIRC − S1", *(_points(pair.difference[WRONG]) for pair in pairs)])
    columns.append(
        ["ρ(S1, S2)", *(", ".join(_number(second.correlation) for second in pair.seconds) for pair in pairs)]
    )
    # τ = 1 − 2·(share of pairs in the other order), where no two are equal.
    columns.append(["ID pairs swapped", *(percent((1 - pair.kendall) / 2) for pair in pairs)])
    if pairs[0].variations and has_wrong:
        columns.append(["a, b varied", *(_span([v.auroc[WRONG] for v in pair.variations]) for pair in pairs)])
    yield from aligned(columns)
    if has_ood:
        columns = [["with S1", *(pair.s1 for pair in pairs)]]
        columns.append(["OOD|ID✓: S1", *(percent(pair.auroc_s1[MEAN].value) for pair in pairs)])
        columns.append(["SIRC − S1", *(_points(pair.difference[MEAN]) for pair in pairs)])
        if pairs[0].variations:
            columns.append(["a, b varied", *(_span([v.auroc[MEAN] for v in pair.variations]) for pair in pairs)])
        columns.append(["AURR: S1", *(percent(pair.aurr_s1) for pair in pairs)])
        columns.append(["SIRC", *(percent(pair.aurr) for pair in pairs)])
        if pairs[0].variations:
            columns.append(["a, b varied", *(_span([v.aurr for v in pair.variations]) for pair in pairs)])
        yield f"{_added(pairs)}; mean over OOD sets, AURR at α = β = {HALF:g}:"
        yield from aligned(columns)


def _added(pairs: Sequence[Pair]) -> str:
    """The sure effect of S2 on the AUROC of OOD|ID✓ of each S1."""
    kinds = {
        "adds to": [pair.s1 for pair in pairs if pair.difference[MEAN].low > 0],
        "takes from": [pair.s1 for pair in pairs if pair.difference[MEAN].high < 0],
    }
    effects = [f"surely {effect} {', '.join(s1s)}" for effect, s1s in kinds.items() if s1s]
    return f"on this OOD data it {' and '.join(effects) or 'surely adds to no S1, nor takes from any'}"


def _of_second(second: Second) -> Iterator[str]:
    if WRONG in second.auroc:
        yield f"AUROC of ID✗|ID✓ of {second.name} alone {_interval(second.auroc[WRONG])}; wanted: near 50%, or above"
    if MEAN in second.auroc:
        yield f"AUROC of OOD|ID✓ of {second.name} alone, mean over sets, {_interval(second.auroc[MEAN])}"
    if "id" in second.below:
        text = f"ID rows below a: {_interval(second.below['id'], 2)}; expected: about 0.1 to 1%"
        ood = [f"{name} {percent(e.value)}" for name, e in second.below.items() if name != "id"]
        yield f"{text}. OOD rows: {', '.join(ood)}" if ood else text


def _interval(estimate: Estimate, digits: int = 1) -> str:
    ends = f"{100 * estimate.low:.{digits}f} to {100 * estimate.high:.{digits}f}"
    return percent(estimate.value, digits) + ("" if math.isnan(estimate.low) else f" ({ends})")


def _points(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return f"{100 * estimate.value:+.2f}"
    return f"{100 * estimate.value:+.2f} ({100 * estimate.low:+.2f} to {100 * estimate.high:+.2f})"


def _span(values: Sequence[float]) -> str:
    return f"{100 * min(values):.1f} to {100 * max(values):.1f}%" if values else "–"


def _number(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "–"
    return f"{estimate.value:+.2f} ({estimate.low:+.2f} to {estimate.high:+.2f})"
