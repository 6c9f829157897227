"""Rules of the check: verdicts on SIRC's premise and the recommended spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from sirc._utils.text import percent
from sirc.evaluation.inputs import MEAN, WRONG
from sirc.evaluation.premise.measures import Pair, Samples

Kind: TypeAlias = Literal["holds", "does not hold", "open"]
Finding: TypeAlias = tuple[Kind, str]
Verdict: TypeAlias = tuple[Kind, tuple[str, ...]]

NEAR = 0.45  # AUROC of ID✗|ID✓ that S2 may not surely be below: near 50%, or above it, is wanted
LEAST = 0.40  # and that it must surely have
MOST_BELOW = 0.05  # share of ID rows below a: 0.13% if S2 is normal, at most 10% whatever it is (Cantelli)
LOSS = 0.005  # AUROC that SIRC may lose
FEWEST = 20  # of ID✓ and ID✗, for a normal interval to mean something
SAME = 0.002  # AUROC within which combinations count as equal


def judge(pair: Pair, samples: Samples) -> Verdict:
    """The verdict on a combination with its reasons: one against it is enough, then one that leaves it open."""
    return _worst(_findings(pair, samples))


def together(judged: Sequence[Verdict]) -> Verdict:
    """The verdict on an S2 from those with each S1: its premise holds if it holds with all of them."""
    return _worst([(kind, reason) for kind, reasons in judged for reason in reasons])


def _worst(findings: Sequence[Finding]) -> Verdict:
    kinds: tuple[Kind, ...] = ("does not hold", "open")
    for kind in kinds:
        if reasons := [reason for verdict, reason in findings if verdict == kind]:
            return kind, tuple(dict.fromkeys(reasons))
    return "holds", ()


def _findings(pair: Pair, samples: Samples) -> list[Finding]:
    findings: list[Finding] = []
    for second in pair.seconds:
        name = second.name
        if second.constant:
            findings.append(("does not hold", f"{name} says the same of every ID row"))
            continue
        if below := second.below.get("id"):
            text = f"{percent(below.value)} of ID rows lie below a, where {name} should seldom speak"
            if below.low > MOST_BELOW:
                hint = "are its statistics in-sample, or is this not the data it was fitted to?"
                findings.append(("does not hold", f"{text} ({hint})"))
            elif below.high > MOST_BELOW:
                findings.append(("open", f"too few ID rows ({len(samples.correct)}): {text}"))
        if not _too_few(samples):
            auroc = second.auroc[WRONG]
            if auroc.high < NEAR:
                text = f"{name} ranks right predictions below wrong ones, AUROC of ID✗|ID✓ {percent(auroc.value)}"
                findings.append(("does not hold", text))
            elif auroc.low < LEAST:
                text = f"its AUROC of ID✗|ID✓ may be as low as {percent(auroc.low)}"
                findings.append(("open", f"too few wrong predictions ({samples.num_wrong}): {text}"))
    if few := _too_few(samples):
        findings.append(("open", few))
    for negative, what in ((WRONG, "ID✗|ID✓"), (MEAN, "OOD|ID✓, mean over sets")):
        if negative not in pair.difference or (negative == WRONG and _too_few(samples)):
            continue
        change = pair.difference[negative]
        if change.high < -LOSS:
            text = f"with {pair.s1} it costs {_points(-change.value)} points of AUROC of {what}"
            findings.append(("does not hold", text))
        elif change.low < -LOSS and negative == WRONG:
            text = f"with {pair.s1} it may cost {_points(-change.low)} points of AUROC of {what}"
            findings.append(("open", f"too few wrong predictions ({samples.num_wrong}): {text}"))
    return findings


def recommend(pairs: Sequence[Pair], verdicts: Mapping[str, Kind], samples: Samples) -> tuple[str, str]:
    """The spec to use and why; `verdicts` are by combination."""
    s1s = list(dict.fromkeys(pair.s1 for pair in pairs))
    if samples.ood:
        return _with_ood(pairs, verdicts, s1s, samples)
    holding = [pair for pair in pairs if verdicts[pair.score] == "holds"]
    if holding:
        top = max(pair.auroc[WRONG].value for pair in holding)
        close = [pair for pair in holding if pair.auroc[WRONG].value >= top - SAME]
        among = f"of those within {100 * SAME:g} points of the highest AUROC of ID✗|ID✓" if len(holding) > 1 else ""
        text = f"its premise holds{f' and, {among}, its S2 has the least in common with S1' if among else ''}"
        return min(close, key=_overlap).score, f"{text}; what it finds of OOD input, ID data cannot tell"
    alone = "S1 alone, as SIRC's premise is not seen to hold for any S2"
    if WRONG not in samples.negatives:
        return s1s[0], f"{alone}; the first, as without wrong predictions they cannot be told apart"
    auroc = {s1: samples.components(s1, WRONG).auroc for s1 in s1s}
    best = max(auroc, key=lambda name: auroc[name])
    return best, f"{alone}; the highest AUROC of ID✗|ID✓, {percent(auroc[best])}"


def _with_ood(
    pairs: Sequence[Pair], verdicts: Mapping[str, Kind], s1s: Sequence[str], samples: Samples
) -> tuple[str, str]:
    """Recommend by what was measured on OOD data, not by the premise."""
    useful = {pair.score: pair for pair in pairs if pair.difference[MEAN].low > 0 and not _costs(pair, samples)}
    aurr = {s1: samples.aurr(s1) for s1 in s1s} | {score: pair.aurr for score, pair in useful.items()}
    best = min(aurr, key=lambda name: aurr[name])
    text = f"the lowest AURR at α = β = ½, {percent(aurr[best])} in the mean over OOD sets"
    if best not in useful:
        return best, f"{text}, and no combination that surely adds to S1 on this OOD data is better"
    pair = useful[best]
    text += f"; against {pair.s1} it adds {_points(pair.difference[MEAN].value)} points of AUROC of OOD|ID✓"
    if WRONG in pair.difference:
        text += f" and changes ID✗|ID✓ by {100 * pair.difference[WRONG].value:+.2f}"
    if verdicts[best] == "does not hold":
        text += ". Its premise does not hold: with other OOD data, or little of it, S1 alone may be better"
    return best, text


def _costs(pair: Pair, samples: Samples) -> bool:
    """Whether SIRC surely loses too much of S1's AUROC of ID✗|ID✓."""
    return WRONG in pair.difference and not _too_few(samples) and pair.difference[WRONG].high < -LOSS


def _overlap(pair: Pair) -> float:
    """The largest |ρ| of S1 with an S2."""
    return max(abs(second.correlation.value) for second in pair.seconds)


def _too_few(samples: Samples) -> str:
    if not samples.num_wrong:
        return "no wrong predictions to compare with"
    for count, kind in ((samples.num_wrong, "wrong"), (samples.num_correct, "right")):
        if count < FEWEST:
            return f"too few {kind} predictions ({count}; at least {FEWEST} are needed, better some hundreds)"
    return ""


def _points(value: float) -> str:
    return f"{100 * value:.2f}"
