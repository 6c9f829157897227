"""Check of SIRC's premise for a model and its S2 scores, with a recommended spec."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import pandas as pd
from torch import Tensor

from sirc._utils.checks import check_fraction
from sirc.evaluation.evaluation import Evaluation
from sirc.evaluation.inputs import Data, check_groups, score_labelled
from sirc.evaluation.premise.measures import Combination, Pair, Samples, rows_of
from sirc.evaluation.premise.rules import judge, recommend, together
from sirc.evaluation.premise.specs import (
    choose,
    combination,
    parse_or_none,
    require_some,
    sirc_specs,
    values,
    with_a_and_b,
)
from sirc.evaluation.premise.text import report_text
from sirc.outputs import Outputs, OutputStore
from sirc.scores import Scorer

__all__ = ["Assumptions", "check_assumptions"]

COLUMNS = ["score", "s1", "s2", "of", "negative", "metric", "k", "slope", "value", "low", "high"]


@final
@dataclass(frozen=True)
class Assumptions:
    """The result of a check; `print` it for a report in words.

    The premise holds for an S2 if, with every S1 that it is combined with,

    1. S2 does not rank right predictions below wrong ones: its AUROC of ID✗|ID✓ is surely at least 40%, and not surely
       below 45% (50% is what the premise says; above it, S2 ranks errors too);
    2. S2 seldom speaks on ID data: surely at most 5% of ID rows lie below a (where a is known);
    3. SIRC surely loses at most 0.5 points of S1's AUROC of ID✗|ID✓, and does not surely lose more of OOD|ID✓.

    *Surely* is with the whole interval. It does not hold where a whole interval lies on the wrong side (of 45%, of 5%,
    of −0.5 points), or where S2 is the same for every row; all else is open. Fewer than 20 right or wrong predictions
    leave 1 and 3 open.

    Recommended without OOD data is a combination whose premise holds: of those within 0.2 points of the highest AUROC
    of ID✗|ID✓, the one with the least |ρ| of S1 and S2; where none holds, the S1 with the highest AUROC. With OOD data
    what was measured counts: the lowest AURR at α = β = ½, in the mean over sets, among the S1 alone and the
    combinations that surely add to S1's AUROC of OOD|ID✓ and do not surely lose over 0.5 points of ID✗|ID✓.
    """

    table: pd.DataFrame
    """Tidy: score, s1, s2, of (the score that the row is about), negative, metric, k, slope, value, low, high.

    `metric` is `auroc`, `difference` (SIRC's AUROC minus S1's), `spearman` (with S1), `kendall` (with S1), `below a`
    (share) or `aurr`; `negative` what it is about: `wrong`, an OOD set, `OOD mean`, all ID rows `id`, or `correct`.
    Rows of SIRC with a = μ − kσ and b = slope/σ have `k` and `slope`.
    """
    verdicts: Mapping[str, str]
    """By S2: `holds`, `does not hold: …` or `open: …`."""
    recommended: str
    """The spec to use."""
    reason: str
    """Why it is recommended."""
    sizes: Mapping[str, int]
    """Samples: `correct`, `wrong`, and each OOD set."""
    level: float
    """Of the intervals."""
    _pairs: tuple[Pair, ...] = field(repr=False)

    def __str__(self) -> str:
        return report_text(self._pairs, self.verdicts, (self.recommended, self.reason), self.sizes, self.level)

    def to_dict(self) -> dict[str, object]:
        """Everything as JSON values; a number that does not exist is None."""
        rows = [
            {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
            for row in self.table.to_dict("records")
        ]
        return {
            "verdicts": dict(self.verdicts),
            "recommended": self.recommended,
            "reason": self.reason,
            "sizes": dict(self.sizes),
            "level": self.level,
            "table": rows,
        }


def check_assumptions(
    scorer: Scorer,
    val: Data,
    ood: Mapping[str, Data] | None = None,
    *,
    s1: str | Sequence[str] | None = None,
    s2: str | Sequence[str] | None = None,
    level: float = 0.95,
) -> Assumptions:
    """Check SIRC's premise for each `sirc(S1, S2)` of a fitted scorer.

    `val` is labelled ID data that the scorer was not fitted on, `ood` a dict of OOD sets (`Outputs`, stores, or
    iterables of batches). `s1` and `s2` pick some of the pairs. Intervals are in closed form: DeLong's for AUROC and
    for paired differences, Wilson's for shares, Bonett and Wright's for ρ.
    """
    if not isinstance(scorer, Scorer):
        raise ValueError(f"`scorer` must be a `Scorer`; got {type(scorer).__name__}. Make one with `sirc.fit`")
    if ood is not None and not isinstance(ood, Mapping):
        raise ValueError(f"`ood` must be a dict of OOD sets; got {type(ood).__name__}. Name each: `{{'x': outputs}}`")
    if isinstance(val, Outputs | OutputStore) and (share := scorer.seen(val)) > 0.01:
        raise ValueError(
            f"`val` must be rows that the scorer was not fitted on; about {share:.0%} of them are. On its own rows a "
            "fitted score looks better than it is: pass validation data"
        )
    specs = sirc_specs(scorer.specs)
    require_some(specs, f"the scorer has {', '.join(scorer.specs)}")
    specs = choose(specs, s1, s2)
    combinations = [combination(name, spec, scorer) for name, spec in specs.items()]
    if not isinstance(val, Outputs | Iterable):
        raise ValueError(f"`val` must be labelled outputs, a store or batches of them; got {type(val).__name__}")
    scorer = scorer.only(list(specs))

    def columns(outputs: Data) -> dict[str, Tensor]:
        return scorer.compute(outputs, lambda evaluator: values(specs, evaluator))

    confidences, correct = score_labelled(columns, "val", val)
    return _check(
        combinations, confidences, correct, {name: columns(data) for name, data in (ood or {}).items()}, level
    )


def of_evaluation(ev: Evaluation, scorer: Scorer | None = None, *, level: float = 0.95) -> Assumptions:
    """Check SIRC's premise for each `sirc(S1, S2)` of an evaluation whose S1 and S2 are among its scores too.

    The share of ID rows below a and the sensitivity to a and b need the scorer that the confidences came from.
    """
    names = {str(spec): name for name in ev.scores if (spec := parse_or_none(name)) is not None}
    combinations = []
    for name, spec in sirc_specs(ev.scores).items():
        if all(str(part) in names for part in spec.args):
            first, *others = (names[str(part)] for part in spec.args)
            parts = Combination(name, first, tuple(others))
            combinations.append(parts if scorer is None else with_a_and_b(parts, spec, scorer, ev.confidences))
    require_some(combinations, f"with its S1 and S2 among the scores too; the evaluation has {', '.join(ev.scores)}")
    return _check(combinations, ev.confidences, ev.correct, ev.ood, level)


def _check(
    combinations: Sequence[Combination],
    confidences: Mapping[str, Tensor],
    correct: Tensor,
    ood: Mapping[str, Mapping[str, Tensor]],
    level: float,
) -> Assumptions:
    level = check_fraction("level", level)
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie between 0 and 1, such as 0.95; got {level:g}")
    if not bool(correct.any()):
        raise ValueError(f"at least one prediction must be right to rank anything; got {len(correct)} wrong")
    check_groups({}, list(ood))
    if taken := {"id", "correct"} & set(ood):
        raise ValueError(f"{taken.pop()!r} has a meaning of its own in the table; name the OOD set otherwise")
    samples = Samples(confidences, correct, ood, level)
    pairs = [samples.measure(parts) for parts in combinations]
    judged = {pair.score: judge(pair, samples) for pair in pairs}
    verdicts = {}
    for s2 in dict.fromkeys(pair.s2 for pair in pairs):
        kind, reasons = together([judged[pair.score] for pair in pairs if pair.s2 == s2])
        verdicts[s2] = ": ".join((kind, "; ".join(reasons))) if reasons else kind
    recommended, reason = recommend(pairs, {score: kind for score, (kind, _) in judged.items()}, samples)
    table = pd.DataFrame([row for pair in pairs for row in rows_of(pair)]).reindex(columns=COLUMNS)
    sizes = {name: len(next(iter(by_score.values()))) for name, by_score in ood.items()}
    sizes = {"correct": samples.num_correct, "wrong": samples.num_wrong, **sizes}
    return Assumptions(table, verdicts, recommended, reason, sizes, level, tuple(pairs))
