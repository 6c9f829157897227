"""The paper's claims about mixtures of ID and OOD data: the risk of each score, and how α and β change it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from sirc.evaluation import POOLED
from sirc.experiment.claims import DETECTORS
from studies.tools.claims.pairs import differences
from studies.tools.claims.verdicts import FAILS, PARTLY, YES, Check, Claim, above, below
from studies.tools.draws import MIDDLE
from studies.tools.families import BASELINE, BEST, LEVELS, SIRC, SWEPT
from studies.tools.study import Study, named, signed, table

HIGH = ((LEVELS[-1], 0.5), (0.5, LEVELS[-1]))
LOWER = tuple(dict.fromkeys([*((a, 0.5) for a in LEVELS[:-1]), *((0.5, b) for b in LEVELS[:-1])]))
LOW_ALPHA = tuple((a, 0.5) for a in LEVELS[:2])
MATCHED = 0.1  # AURR ×10²: what "matches" allows


def mixture_claims(study: Study) -> Iterator[Claim]:
    """Section 5.2 of the paper."""
    yield detectors_are_worse(study)
    yield sirc_is_no_worse(study)
    yield msp_is_best_where_wrong_dominates(study)
    yield sirc_wins_elsewhere(study)
    yield detectors_on_close(study)
    yield detectors_on_far(study)


def _at(at: tuple[float, float]) -> str:
    return f"α = {at[0]:g}, β = {at[1]:g}"


def swept(
    study: Study, scores: Sequence[str], negatives: Sequence[str], settings: Sequence[tuple[float, float]], *, up: bool
) -> list[Check]:
    """AURR minus that of MSP at some (α, β); `up`: a claim that it is higher, which is worse."""
    checks = []
    for model in study.models:
        for score in scores:
            for negative in negatives:
                for at in settings:
                    interval = study.interval(model, score, BASELINE, negative, "aurr", at)
                    if interval is not None:
                        what = f"{named(score)}, {negative}, {_at(at)}"
                        checks.append(Check(model, what, (above if up else below)(interval), interval, fine=True))
    return checks


def sweep_table(study: Study, scores: Sequence[str], negatives: Sequence[str], metric: str = "aurr") -> str:
    """A metric minus that of MSP, ×100, for every network at each α and each β; surely better ones in bold."""
    name = {"aurr": "ΔAURR ×10²", "risk@95": "ΔRisk@95 ×10²"}[metric]
    header = [name, *(f"α {a:g}" for a in LEVELS), *(f"β {b:g}" for b in LEVELS if b != MIDDLE[1])]
    settings = [*((a, 0.5) for a in LEVELS), *((0.5, b) for b in LEVELS if b != MIDDLE[1])]
    rows = []
    for score, negative, model in itertools.product(scores, negatives, study.shown):
        cells = []
        for at in settings:
            interval = study.interval(model, score, BASELINE, negative, metric, at)
            shown = "–" if interval is None else signed(interval.value, 2)
            cells.append(f"**{shown}**" if interval is not None and below(interval) == YES else shown)
        where = f", {negative}" if len(negatives) > 1 else ""
        rows.append([f"{named(score)}{where}, {model}", *cells])
    return table(header, rows)


def detectors_are_worse(study: Study) -> Claim:
    """'Improved OOD detection often comes directly at the expense of SCOD performance.'"""
    pairs = [(score, BASELINE) for score in DETECTORS]
    return Claim(
        "OOD detectors are worse than MSP for SCOD",
        "Existing OOD detection methods fail to match MSP where ID✗ and OOD are to be rejected together (a figure, "
        "without numbers).",
        "AURR on all OOD data at α = β = 0.5, ×10², minus that of MSP; above 0, which is worse, bears it out.",
        [Check(m, named(s), above(i), i, fine=True) for m, s, _, i in differences(study, pairs, POOLED, "aurr")],
        aurr_table(study, pairs),
        {PARTLY: "A detector that is strong enough on these OOD sets makes up for what it loses on ID✗."},
    )


def sirc_is_no_worse(study: Study) -> Claim:
    """'SIRC is able to consistently match or outperform the baseline for SCOD.'"""
    pairs = [(score, BASELINE) for score in SIRC]
    return Claim(
        "SIRC matches or beats MSP for SCOD",
        "SIRC consistently matches or outperforms MSP, over OOD sets and networks (a figure, without numbers).",
        f"The same for the paper's six forms of SIRC; below +{MATCHED} bears it out.",
        [
            Check(m, named(s), below(i, MATCHED), i, fine=True)
            for m, s, _, i in differences(study, pairs, POOLED, "aurr")
        ],
        aurr_table(study, pairs),
        {
            PARTLY: "Where it does not, S2 is too poor on these OOD sets to make up for what it costs on ID✗.",
            FAILS: "S2 is too poor on these OOD sets to make up for what it costs on ID✗.",
        },
    )


def aurr_table(study: Study, pairs: Sequence[tuple[str, str]]) -> str:
    """A row for each pair: the difference in AURR on each network."""
    rows = []
    for score, baseline in pairs:
        cells = [study.interval(model, score, baseline, POOLED, "aurr") for model in study.shown]
        if any(cells):
            rows.append([named(score), *(cell and cell.finer for cell in cells)])
    return table(["ΔAURR ×10²", *study.shown], rows)


def msp_is_best_where_wrong_dominates(study: Study) -> Claim:
    """'At high α and β, where ID✗ dominates the risk, the MSP baseline performs best.'"""
    return Claim(
        "MSP is best where ID✗ dominates the risk",
        "With α or β near 1 no method has a lower AURR than MSP.",
        f"AURR on all OOD data minus that of MSP, at {_at(HIGH[0])} and at {_at(HIGH[1])}, for the scores of "
        "the table; above 0, which is worse, bears it out.",
        swept(study, SWEPT, (POOLED,), HIGH, up=True),
        sweep_table(study, SWEPT, (POOLED,)),
        {
            PARTLY: "SIRC stays so close to its S1 on ID✗|ID✓ that a gain on few OOD data can still make up for it.",
            FAILS: "SIRC stays so close to its S1 on ID✗|ID✓ that a gain on few OOD data still makes up for it.",
        },
    )


def sirc_wins_elsewhere(study: Study) -> Claim:
    """'SIRC (−H, Res.) … only doing worse for ID✗ dominated cases (α, β close to 1).'"""
    return Claim(
        f"{named(BEST)} beats MSP unless α or β is near 1",
        "It improves on MSP most consistently, over Close, Far and all OOD data.",
        f"AURR of {named(BEST)} minus that of MSP at α and β of {', '.join(f'{x:g}' for x in LEVELS[:-1])}, the other "
        "at 0.5, on all, Close and Far OOD data; below 0 bears it out.",
        swept(study, (BEST,), (POOLED, *study.groups), LOWER, up=False),
        f"{sweep_table(study, (BEST,), list(study.groups))}\n\nRisk@95 on all OOD "
        f"data:\n\n{sweep_table(study, (BEST, 'energy', 'vim'), (POOLED,), 'risk@95')}",
        {
            PARTLY: "SIRC's gain comes from S2; on OOD data that S2 cannot separate from ID data, only the cost is "
            "left.",
            FAILS: "SIRC's gain comes from S2; on OOD data that S2 cannot separate from ID data, only the cost is "
            "left.",
        },
    )


def detectors_on_close(study: Study) -> Claim:
    """'They … always do worse on "Close" OOD data.'"""
    settings = tuple(dict.fromkeys([*LOWER, *HIGH]))
    return Claim(
        "Energy and ViM are always worse than MSP on Close OOD data",
        "On its Close sets both have a higher AURR than MSP whatever α and β are.",
        "AURR on Close OOD data minus that of MSP at every α and β of the table; above 0 bears it out.",
        swept(study, ("energy", "vim"), ("Close",), settings, up=True),
        sweep_table(study, ("energy", "vim"), ("Close",)) if "Close" in study.groups else "",
        {
            PARTLY: "Leaves on a plain ground are Close by our grouping, but not to a detector that reads features.",
            FAILS: "The Close sets differ from the paper's; leaves on a plain ground, for example, are easy for "
            "feature-based detectors.",
        },
    )


def detectors_on_far(study: Study) -> Claim:
    """'They significantly outperform the baseline at lower α for the "Far" grouping.'"""
    return Claim(
        "Energy and ViM beat MSP on Far OOD data at low α",
        "On its Far sets both have a clearly lower AURR than MSP once OOD data are common.",
        f"AURR on Far OOD data minus that of MSP at α of {' and '.join(f'{a:g}' for a, _ in LOW_ALPHA)}, β = 0.5; "
        "below 0 bears it out.",
        swept(study, ("energy", "vim"), ("Far",), LOW_ALPHA, up=False),
        sweep_table(study, ("energy", "vim"), ("Far",)) if "Far" in study.groups else "",
        {
            PARTLY: "ViM also uses Residual, Energy only the size of the logits, and simple images can have large "
            "ones.",
            FAILS: "Simple images can have large logits, and Energy measures their size; ViM also uses Residual, which "
            "can be near or below chance on Far sets, too.",
        },
    )
