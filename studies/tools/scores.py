"""Every score of the project in one table for each part it can play, and which S1, S2 and combination are best now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sirc.evaluation import MEAN, WRONG
from sirc.scores import parse, registry
from studies.tools.claims.verdicts import NO, YES, below
from studies.tools.families import ALONE, BASELINE, FIRST, OTHER, SOFTMAX, WITH_ENTROPY, WITH_MSP, families, plain_of
from studies.tools.measure import EVERY
from studies.tools.study import Interval, Study, listed, named, signed, table

COLUMNS = (
    ("ID✗ AUROC ↑", WRONG, "auroc", 1),
    ("OOD AUROC ↑", MEAN, "auroc", 1),
    ("AURR ×10² ↓", MEAN, "aurr", 2),
)
PART = {FIRST: 0, WITH_MSP: 1, WITH_ENTROPY: 1}
TITLES = {
    ALONE: "Alone",
    FIRST: "As S1: SIRC(S1, Res.)",
    WITH_MSP: "As S2: SIRC(MSP, S2)",
    WITH_ENTROPY: "As S2: SIRC(−H, S2)",
    OTHER: "Other combinations",
}
BEST_RULE = (
    "The best of a family has the lowest AURR at α = β = 0.5, as the mean over OOD sets and seeds, of one network or "
    "of all. A score is not surely worse if the interval of its difference to the best includes 0; some of these may "
    "only vary more. The best was chosen on the test data that it is measured on, so it looks a little better than it "
    "is. summary.csv has the AURC of each."
)


def by_aurr(study: Study, scores: Sequence[str], model: str = EVERY) -> list[str]:
    """Scores from the lowest AURR on."""
    return sorted(scores, key=lambda score: study.mean(model, score, MEAN, "aurr"))


def ties(study: Study, scores: Sequence[str], model: str = EVERY) -> tuple[str, list[str]]:
    """The best score, and those that are not surely worse."""
    best, *others = by_aurr(study, scores, model)
    equal = []
    for score in others:
        interval = study.interval(model, score, best, MEAN, "aurr")
        turned = study.interval(model, best, score, MEAN, "aurr")
        if interval is None and turned is None:
            raise ValueError(
                f"comparisons.csv must compare `{score}` with `{best}`, the best here; it does not, so that it is of "
                "other runs than results.csv. Measure again, into a folder that has the results.csv of these runs or "
                "none."
            )
        if (interval.low <= 0) if interval is not None else (turned is not None and turned.high >= 0):
            equal.append(score)
    return best, equal


def family_table(study: Study, scores: Sequence[str]) -> str:
    """Means over networks, and AURR minus that of MSP ± half its interval; the best and the not surely worse bold."""
    best, equal = ties(study, scores)
    rows = []
    for score in by_aurr(study, scores):
        cells = _means(study, score)
        shown = f"`{score}`"
        rows.append([f"**{shown}**" if score == best or score in equal else shown, *cells])
    return table(["", *(column[0] for column in COLUMNS)], rows)


def second_table(study: Study, with_msp: Sequence[str], with_entropy: Sequence[str]) -> str:
    """A row for each S2, with MSP and with the entropy beside each other."""
    alone, beside = ({str(parse(score).args[1]): score for score in some} for some in (with_msp, with_entropy))
    bold = {name for some in (with_msp, with_entropy) for best, close in [ties(study, some)] for name in (best, *close)}
    either = {**beside, **alone}
    rows = []
    for second in sorted(either, key=lambda name: study.mean(EVERY, either[name], MEAN, "aurr")):
        cells = []
        for score in (alone.get(second), beside.get(second)):
            shown = ["–"] * len(COLUMNS) if score is None else _means(study, score)
            cells += [*shown[:-1], f"**{shown[-1]}**" if score in bold else shown[-1]]
        rows.append([f"`{second}`", *cells])
    short = [column[0].replace(" ×10²", "") for column in COLUMNS]
    return table(["S2", *(f"{first}: {name}" for first in ("MSP", "−H") for name in short)], rows)


def best_table(study: Study, found: Mapping[str, Sequence[str]]) -> str:
    """For each family, over all networks and on each: the best, what it gains over MSP, and how many are close."""
    rows = []
    for family, members in {**found, EVERY: study.scores}.items():
        cells = []
        for model in (EVERY, *study.models):
            best, close = ties(study, members, model)
            name = named(str(parse(best).args[PART[family]])) if family in PART else named(best)
            gained = study.interval(model, best, BASELINE, MEAN, "aurr")
            cells.append(f"{name}{'' if gained is None else ' ' + _half(gained, 2)} ({len(close)})")
        rows.append([TITLES.get(family, f"Of all {len(study.scores)}"), *cells])
    return table(["ΔAURR ×10² to MSP", EVERY, *study.models], rows)


def best_now(study: Study) -> list[str]:
    """Which S1, S2 and combination are best over all networks, in words."""
    found = families(study.scores)
    words = {
        FIRST: "Best S1, with Residual as S2",
        WITH_MSP: "Best S2, with MSP as S1",
        WITH_ENTROPY: "Best S2, with −H as S1",
    }
    lines = []
    for family, title in words.items():
        if found[family]:
            best, *close = (str(parse(score).args[PART[family]]) for score in _with_ties(study, found[family]))
            lines.append(f"{title}: `{best}`; {_not_worse(close)}.")
    best, *close = _with_ties(study, study.scores)
    lines.append(f"Best of all {len(study.scores)} scores and combinations by AURR: `{best}`; {_not_worse(close)}.")
    return lines


def _with_ties(study: Study, scores: Sequence[str]) -> list[str]:
    best, close = ties(study, scores)
    return [best, *close]


def _not_worse(close: Sequence[str]) -> str:
    if not close:
        return "all others are surely worse"
    return f"{listed([f'`{name}`' for name in close])} {'is' if len(close) == 1 else 'are'} not surely worse"


def against_plain(study: Study, scores: Sequence[str]) -> str:
    """Whether Bayes is better than the plain SIRC of the same scores."""
    outcomes = []
    for score in scores:
        plain = plain_of(score)
        if plain is not None and parse(score).name == "bayes":
            interval = study.interval(EVERY, score, plain, MEAN, "aurr")
            if interval is not None:
                outcomes.append(below(interval))
    if not outcomes:
        return ""
    return (
        "Does Bayes beat the SIRC of the same S1 and S2? By AURR at α = β = 0.5, over all networks, it is surely "
        f"better in {outcomes.count(YES)} of {len(outcomes)} pairs and surely worse in {outcomes.count(NO)}."
    )


def outside_softmax(study: Study, alone: Sequence[str]) -> str:
    """Whether any score that is no softmax score matches MSP at ID✗|ID✓."""
    first = {name for name in registry.names() if registry.get(name).log_gap} | set(SOFTMAX)
    found = {s: study.interval(EVERY, s, BASELINE, WRONG, "auroc") for s in alone if s not in first}
    known = {score: interval for score, interval in found.items() if interval is not None}
    matching = [named(score) for score, interval in known.items() if interval.high >= 0]
    inside = {s: study.interval(EVERY, s, BASELINE, WRONG, "auroc") for s in alone if s in first}
    better = [named(score) for score, interval in inside.items() if interval is not None and interval.low > 0]
    others = f"{_those(matching)} not surely worse" if matching else "all are surely worse"
    words = f"Of {len(known)} scores outside the softmax, {others} than MSP at ID✗|ID✓"
    return f"{words}; of the softmax scores, {_those(better)} surely better."


def score_sections(study: Study) -> list[str]:
    """The part of the document about every score."""
    found = {family: members for family, members in families(study.scores).items() if members}
    parts = [BEST_RULE, best_table(study, found)]
    best, close = ties(study, study.scores)
    same = listed([f"`{score}`" for score in close], 8) if close else "none"
    parts.append(
        "In brackets is how many others of the family are not surely worse. Over all networks the best of all is "
        f"`{best}`; not surely worse: {same}."
    )
    parts.append(outside_softmax(study, found.get(ALONE, [])))
    parts.append(against_plain(study, found.get(OTHER, [])))
    parts.append(
        "The tables have means over the networks and, in brackets, the difference in AURR to MSP ± half its 95% "
        "interval; comparisons.csv, which `measure` writes, has those of the AUROC. "
        "In bold are the best of a table and those that are not surely worse."
    )
    for family, members in found.items():
        shown = members if BASELINE in members else [*members, BASELINE]
        if family == WITH_MSP and WITH_ENTROPY in found:
            parts += ["### As S2: SIRC(MSP, S2) and SIRC(−H, S2)", second_table(study, members, found[WITH_ENTROPY])]
        elif family != WITH_ENTROPY or WITH_MSP not in found:
            parts += [f"### {TITLES[family]}", family_table(study, shown)]
    return [part for part in parts if part]


def _those(names: Sequence[str]) -> str:
    return "none is" if not names else f"{listed(names, 8)} {'is' if len(names) == 1 else 'are'}"


def _means(study: Study, score: str) -> list[str]:
    """Means over networks; with the AURR, its difference to MSP."""
    cells = []
    for _, negative, metric, digits in COLUMNS:
        interval = study.interval(EVERY, score, BASELINE, negative, metric) if metric == "aurr" else None
        cells.append(f"{study.mean(EVERY, score, negative, metric):.{digits}f}{_to(interval, digits)}")
    return cells


def _half(interval: Interval | None, digits: int) -> str:
    if interval is None:
        return "–"
    return f"{signed(interval.value, digits)} ± {(interval.high - interval.low) / 2:.{digits}f}"


def _to(interval: Interval | None, digits: int) -> str:
    return "" if interval is None else f" ({_half(interval, digits)})"
