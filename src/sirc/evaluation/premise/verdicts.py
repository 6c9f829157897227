"""Verdicts on SIRC's premise, the recommended spec, and the measurements behind them in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from sirc._utils.text import aligned, percent
from sirc.evaluation.inputs import MEAN, WRONG
from sirc.evaluation.premise.measures import HALF, PLAIN, Measured
from sirc.metrics import Estimate

Kind: TypeAlias = Literal["holds", "does not hold", "open"]
Reason: TypeAlias = tuple[Kind, str]

NEAR = 0.45  # S2's AUROC of ID✗|ID✓ must not surely be below this
LEAST = 0.40  # and must surely be at least this
MOST_BELOW = 0.05  # share of ID rows below a: 0.13% if S2 is normal, at most 10% whatever it is (Cantelli)
LOSS = 0.005  # AUROC that SIRC may lose
FEWEST = 20  # samples of ID✓ and of ID✗, for a normal interval to be of use
SAME = 0.002  # AUROC within which combinations count as equal


def judge(combinations: Sequence[Measured], sizes: Mapping[str, int]) -> tuple[Kind, list[str]]:
    """The verdict and its reasons: those for `does not hold`, or if there are none, those for `open`."""
    all_reasons = [reason for one in combinations for reason in _reasons(one, sizes)]
    kinds: tuple[Kind, ...] = ("does not hold", "open")
    for kind in kinds:
        if reasons := [text for verdict, text in all_reasons if verdict == kind]:
            return kind, list(dict.fromkeys(reasons))
    return "holds", []


def _reasons(one: Measured, sizes: Mapping[str, int]) -> Iterator[Reason]:
    few = _too_few(sizes)
    too_few_wrong = f"too few wrong predictions ({sizes['wrong']})"
    for column in one.s2:
        name = column.removeprefix(PLAIN)
        if column in one.constant:
            yield "does not hold", f"{name} has the same value for every ID row"
            continue
        if one.a:
            below = one.of(column, "id", "below a")
            text = f"{percent(below.value)} of ID rows have {name} below a; it should be at most {percent(MOST_BELOW)}"
            if below.low > MOST_BELOW:
                hint = "are its statistics in-sample, or is this not the data it was fitted to?"
                yield "does not hold", f"{text} ({hint})"
            elif below.high > MOST_BELOW:
                yield "open", f"too few ID rows ({sizes['correct'] + sizes['wrong']}): {text}"
        if not few:
            auroc = one.of(column, WRONG, "auroc")
            if auroc.high < NEAR:
                text = f"{name} ranks right predictions below wrong ones, AUROC of ID✗|ID✓ {percent(auroc.value)}"
                yield "does not hold", text
            elif auroc.low < LEAST:
                yield "open", f"{too_few_wrong}: its AUROC of ID✗|ID✓ may be as low as {percent(auroc.low)}"
    if few:
        yield "open", few
    for negative, what in ((WRONG, "ID✗|ID✓"), (MEAN, "OOD|ID✓, mean over sets")):
        if not one.has(negative) or (negative == WRONG and few):
            continue
        gain = one.gain(negative)
        if gain.high < -LOSS:
            yield "does not hold", f"with {one.s1} it costs {-100 * gain.value:.2f} points of AUROC of {what}"
        elif gain.low < -LOSS and negative == WRONG:
            text = f"with {one.s1} it may cost {-100 * gain.low:.2f} points of AUROC of {what}"
            yield "open", f"{too_few_wrong}: {text}"


def _too_few(sizes: Mapping[str, int]) -> str:
    if not sizes["wrong"]:
        return "no wrong predictions to compare with"
    for count, kind in ((sizes["wrong"], "wrong"), (sizes["correct"], "right")):
        if count < FEWEST:
            return f"too few {kind} predictions ({count}; at least {FEWEST} are needed, better some hundreds)"
    return ""


def recommend(combinations: Sequence[Measured], sizes: Mapping[str, int]) -> tuple[str, str]:
    """The spec to use and why."""
    first = combinations[0]
    if first.has(MEAN):
        return _with_ood(combinations, sizes)
    holding = {one.score: one for one in combinations if judge([one], sizes)[0] == "holds"}
    if holding:
        auroc = {score: one.of(score, WRONG, "auroc").value for score, one in holding.items()}
        close = [one for score, one in holding.items() if auroc[score] >= max(auroc.values()) - SAME]
        among = f"of those within {100 * SAME:g} points of the highest AUROC of ID✗|ID✓"
        text = f" and, {among}, its S2 has the least in common with S1" if len(holding) > 1 else ""
        least = min(close, key=lambda one: max(abs(one.of(s2, "id", "spearman").value) for s2 in one.s2))
        return least.score, f"its premise holds{text}; ID data cannot show how well it rejects OOD input"
    alone = "S1 alone, as SIRC's premise was not shown to hold for any S2"
    if not first.has(WRONG):
        return first.s1, f"{alone}; the first one, as S1 scores cannot be compared without wrong predictions"
    auroc = {one.s1: one.of(one.s1, WRONG, "auroc").value for one in combinations}
    best = max(auroc, key=lambda name: auroc[name])
    return best, f"{alone}; the highest AUROC of ID✗|ID✓, {percent(auroc[best])}"


def _with_ood(combinations: Sequence[Measured], sizes: Mapping[str, int]) -> tuple[str, str]:
    """Recommend by the measures on OOD data, not by the premise."""

    def costs(one: Measured) -> bool:
        return not _too_few(sizes) and one.gain(WRONG).high < -LOSS

    useful = {one.score: one for one in combinations if one.gain(MEAN).low > 0 and not costs(one)}
    aurr = {one.s1: one.of(one.s1, MEAN, "aurr").value for one in combinations}
    aurr |= {score: one.of(score, MEAN, "aurr").value for score, one in useful.items()}
    best = min(aurr, key=lambda name: aurr[name])
    text = f"the lowest AURR at α = β = ½, {percent(aurr[best])} in the mean over OOD sets"
    if best not in useful:
        return best, f"{text}, and no combination that surely adds to S1 on this OOD data is better"
    chosen = useful[best]
    text += f"; against {chosen.s1} it adds {100 * chosen.gain(MEAN).value:.2f} points of AUROC of OOD|ID✓"
    if chosen.has(WRONG):
        text += f" and changes ID✗|ID✓ by {100 * chosen.gain(WRONG).value:+.2f}"
    if judge([chosen], sizes)[0] == "does not hold":
        text += ". Its premise does not hold: with other OOD data, or little of it, S1 alone may be better"
    return best, text


def facts(same: Sequence[Measured]) -> Iterator[str]:
    """The lines of the report on the combinations of one S2."""
    first, known = same[0], bool(same[0].a)

    def column(title: str, cell: Callable[[Measured], str]) -> list[str]:
        return [title, *map(cell, same)]

    def compared(negative: str, what: str) -> list[list[str]]:
        return [
            column(f"{what}: S1", lambda one: percent(one.of(one.s1, negative, "auroc").value)),
            column("SIRC − S1", lambda one: _number(one.gain(negative), "+.2f")),
        ]

    def varied(negative: str, metric: str) -> list[list[str]]:
        return [column("a, b varied", lambda one: _span(one.span(negative, metric)))] if known else []

    for s2 in first.s2:
        yield from _of_s2(first, s2)
    if not known:
        yield "a and b are not known here: pass the scorer for the share of ID rows below a and the sensitivity to both"
    yield from aligned(
        [
            column("with S1", lambda one: one.s1),
            *(compared(WRONG, "ID✗|ID✓") if first.has(WRONG) else []),
            column(
                "ρ(S1, S2)", lambda one: ", ".join(_number(one.of(s2, "id", "spearman"), "+.2f", 1) for s2 in one.s2)
            ),
            # τ = 1 − 2·(share of pairs in the other order), where no two are equal.
            column("ID pairs swapped", lambda one: percent((1 - one.of(one.score, "id", "kendall").value) / 2)),
            *(varied(WRONG, "auroc") if first.has(WRONG) else []),
        ]
    )
    if first.has(MEAN):
        effects = {"adds to": [one.s1 for one in same if one.gain(MEAN).low > 0]}
        effects["takes from"] = [one.s1 for one in same if one.gain(MEAN).high < 0]
        sure = " and ".join(f"surely {effect} {', '.join(s1s)}" for effect, s1s in effects.items() if s1s)
        yield (
            f"on this OOD data it {sure or 'has no sure effect on any S1'}; mean over OOD sets, AURR at "
            f"α = β = {HALF:g}:"
        )
        yield from aligned(
            [
                column("with S1", lambda one: one.s1),
                *compared(MEAN, "OOD|ID✓"),
                *varied(MEAN, "auroc"),
                column("AURR: S1", lambda one: percent(one.of(one.s1, MEAN, "aurr").value)),
                column("SIRC", lambda one: percent(one.of(one.score, MEAN, "aurr").value)),
                *varied(MEAN, "aurr"),
            ]
        )


def _of_s2(one: Measured, column: str) -> Iterator[str]:
    name = column.removeprefix(PLAIN)
    if one.has(WRONG):
        auroc = _number(one.of(column, WRONG, "auroc"), ".1f", unit="%")
        yield f"AUROC of ID✗|ID✓ of {name} alone {auroc}; wanted: near 50%, or above"
    if one.has(MEAN):
        auroc = _number(one.of(column, MEAN, "auroc"), ".1f", unit="%")
        yield f"AUROC of OOD|ID✓ of {name} alone, mean over sets, {auroc}"
    if one.a:
        below = {key[1]: x for key, x in one.measures.items() if key[0] == column and key[2] == "below a"}
        text = f"ID rows below a: {_number(below.pop('id'), '.2f', unit='%')}; expected: about 0.1 to 1%"
        ood = ", ".join(f"{negative} {percent(x.value)}" for negative, x in below.items())
        yield f"{text}. OOD rows: {ood}" if ood else text


def _number(estimate: Estimate, digits: str, scale: float = 100, unit: str = "") -> str:
    """A number with its interval, if it has one: `95.4% (95.1 to 95.7)`."""
    if math.isnan(estimate.value):
        return "–"
    value, low, high = (f"{scale * x:{digits}}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value}{unit}" if math.isnan(estimate.low) else f"{value}{unit} ({low} to {high})"


def _span(values: Sequence[float]) -> str:
    return f"{100 * min(values):.1f} to {100 * max(values):.1f}%" if values else "–"
