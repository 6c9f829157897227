"""Check of SIRC's premise for a model and its S2 scores, with a recommended spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import final

import pandas as pd
import torch
from torch import Tensor

from sirc._utils.checks import check_type
from sirc._utils.text import quoted
from sirc.errors import NotFittedError
from sirc.evaluation.evaluation import Evaluation
from sirc.evaluation.inputs import (
    AnyOutputs,
    as_names,
    as_sets,
    check_fresh,
    check_groups,
    check_level,
    group_sizes,
    json_rows,
    parse_or_none,
    require_right,
    score_labelled,
)
from sirc.evaluation.premise.measures import PLAIN, Measured, Samples, ScoreValues
from sirc.evaluation.premise.verdicts import facts, judge, recommend
from sirc.scores import Evaluator, Scorer, Spec, functional, is_bounded, parse, ranks_by_gap


@final
@dataclass(frozen=True)
class Assumptions:
    """The result of a check; `print` it for a report in words.

    The premise holds for an S2 if, with every S1 that it is combined with,

    1. S2 does not rank right predictions below wrong ones: its AUROC of ID✗|ID✓ is surely at least 40%, and not surely
       below 45% (the premise expects 50%; above that, S2 ranks errors too);
    2. S2 seldom lowers the confidence of ID data: surely at most 5% of ID rows lie below a (if a is known);
    3. SIRC surely loses at most 0.5 points of S1's AUROC of ID✗|ID✓, and does not surely lose more of OOD|ID✓.

    *Surely* means the whole interval. The premise does not hold if a whole interval lies on the wrong side (of 45%, 5%
    or −0.5 points), or if S2 is the same for every row. Otherwise it is open; with fewer than 20 right or wrong
    predictions, 1 and 3 are always open.

    Without OOD data, a combination whose premise holds is recommended: among those within 0.2 points of the highest
    AUROC of ID✗|ID✓, the one with the smallest |ρ| of S1 and S2. If none holds, it is the S1 with the highest AUROC.
    With OOD data the lowest AURR decides, at α = β = ½ as the mean over sets, among each S1 alone and the combinations
    that surely add to S1's AUROC of OOD|ID✓ and do not surely lose over 0.5 points of ID✗|ID✓.
    """

    table: pd.DataFrame
    """Tidy: score, s1, s2, of (the score that the row is about), negative, metric, k, slope, value, low, high.

    `metric` is `auroc`, `difference` (SIRC's AUROC minus S1's), `spearman` (with S1), `kendall` (with S1), `below a`
    (a share) or `aurr`. `negative` is `wrong`, an OOD set, `OOD mean`, or for measures of ID rows `id` or `correct`.
    Rows of SIRC with a = μ − kσ and b = slope/σ have `k` and `slope`.
    """
    verdicts: Mapping[str, str]
    """By S2: `holds`, `does not hold: …` or `open: …`."""
    recommended: str
    """The spec to use."""
    reason: str
    """Why it is recommended."""
    sizes: Mapping[str, int]
    """The number of samples in `correct`, `wrong` and each OOD set."""
    level: float
    """The confidence level of the intervals."""
    _combinations: tuple[Measured, ...] = field(repr=False)

    def __str__(self) -> str:
        right, wrong, *_ = self.sizes.values()
        ood = ", ".join(f"{name} {count:,}" for name, count in list(self.sizes.items())[2:])
        lines = [
            f"Does SIRC's premise hold? ID data: {right:,} right, {wrong:,} wrong predictions. OOD data: "
            f"{ood or 'none'}. Intervals: {100 * self.level:g}%."
        ]
        for s2, verdict in self.verdicts.items():
            measured = facts([one for one in self._combinations if one.s2_names == s2])
            lines += ["", f"{s2}: {verdict}", *(f"  {line}" for line in measured)]
        return "\n".join([*lines, "", f"Recommended: {self.recommended}", f"  {self.reason}"])

    def to_dict(self) -> dict[str, object]:
        """Everything as JSON values; NaN becomes None."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("table", "_combinations")}
        return {**plain, "table": json_rows(self.table)}


def check_assumptions(
    scorer: Scorer,
    val: AnyOutputs,
    ood: Mapping[str, AnyOutputs] | None = None,
    *,
    s1: str | Sequence[str] | None = None,
    s2: str | Sequence[str] | None = None,
    level: float = 0.95,
) -> Assumptions:
    """Check SIRC's premise for each `sirc(S1, S2)` of a fitted scorer.

    `val` is labelled ID data that the scorer was not fitted on, `ood` a dict of OOD sets (`Outputs`, stores, or
    iterables of batches). `s1` and `s2` select some of the pairs. Intervals are in closed form: DeLong's for AUROC and
    for paired differences, Wilson's for shares, Bonett and Wright's for ρ.
    """
    check_type("scorer", scorer, Scorer, "a `Scorer`", "Make one with `sirc.fit`")
    sets = as_sets(ood)
    check_fresh(scorer, "val", val)
    specs = {
        name: spec
        for name in scorer.specs
        if (spec := parse(name)).name == "sirc" and _among(spec.args[:1], s1) and _among(spec.args[1:], s2)
    }
    _require_some(specs, f"with the given `s1` and `s2`; got {', '.join(scorer.specs)}")
    combinations = []
    for name, spec in specs.items():
        first, *others = spec.args
        parts = Measured(name, str(first), tuple(f"{PLAIN}{part}" for part in others))
        a, b = _fitted_a_and_b(spec, scorer)
        # A `budget` moves `a` away from μ − 3σ, so the share of rows below it tells nothing about S2.
        combinations.append(parts if spec.tunes else replace(parts, a=a, b=b))
    scorer = scorer.only(list(specs))

    def columns(outputs: AnyOutputs) -> dict[str, Tensor]:
        return scorer.compute(outputs, lambda evaluator: _values(specs, evaluator))

    confidences, correct = score_labelled(columns, "val", val)
    return _check(combinations, confidences, correct, {name: columns(data) for name, data in sets.items()}, level)


def of_evaluation(ev: Evaluation, scorer: Scorer | None = None, *, level: float = 0.95) -> Assumptions:
    """Check SIRC's premise for each `sirc(S1, S2)` of an evaluation whose S1 and S2 are among its scores too.

    The share of ID rows below a, and the sensitivity to a and b, need the scorer that made the confidences.
    """
    specs = {name: spec for name in ev.scores if (spec := parse_or_none(name)) is not None}
    names = {str(spec): name for name, spec in specs.items()}
    combinations = []
    for name, spec in specs.items():
        if spec.name == "sirc" and all(str(part) in names for part in spec.args):
            first, *others = (names[str(part)] for part in spec.args)
            parts = Measured(name, first, tuple(others))
            combinations.append(parts if scorer is None else _with_a_and_b(parts, spec, scorer, ev.confidences))
    _require_some(combinations, f"with its S1 and S2 among the scores too; got {', '.join(ev.scores)}")
    return _check(combinations, ev.confidences, ev.correct, ev.ood, level)


def _require_some(combinations: Sequence[object] | Mapping[str, object], rule: str) -> None:
    if not combinations:
        raise ValueError(
            f"a check needs at least one `sirc(S1, S2)` {rule}. Fit some: "
            '`sirc.fit(["msp", "l1", "sirc(msp, l1)"], train, head=head)`'
        )


def _among(parts: Sequence[Spec], wanted: str | Sequence[str] | None) -> bool:
    return wanted is None or {str(part) for part in parts} <= {str(parse(name)) for name in as_names(wanted)}


def _values(specs: Mapping[str, Spec], evaluator: Evaluator) -> dict[str, Tensor]:
    """For each combination: its confidence, −log(S1max − S1), and its plain S2 scores."""
    columns = {}
    for name, spec in specs.items():
        first, *others = spec.args
        columns[name] = evaluator.confidence(spec)
        columns[str(first)] = -evaluator.log_gap(first)
        columns |= {f"{PLAIN}{part}": evaluator.value(part) for part in others}
    return columns


def _fitted_a_and_b(spec: Spec, scorer: Scorer) -> list[tuple[float, ...]]:
    """The a and b of a combination, from its spec or from the fit."""
    numbers = [spec.numbers("a"), spec.numbers("b")]
    if None in numbers and str(spec) not in scorer.parameters:
        raise NotFittedError(
            f"`{spec}` must be fitted, to know its a and b: `sirc.fit([{quoted(str(spec))}], train, head=head)`"
        )
    fitted = scorer.parameters.get(str(spec), {})
    return [tuple(fitted[name].tolist()) if given is None else given for name, given in zip("ab", numbers, strict=True)]


def _with_a_and_b(parts: Measured, spec: Spec, scorer: Scorer, confidences: ScoreValues) -> Measured:
    """The combination with a and b, after a check that this scorer made its confidences."""
    if any(is_bounded(part) for part in spec.args[1:]) or not ranks_by_gap(spec.args[0]) or spec.tunes:
        return parts  # confidences of a bounded S2 are not its plain values, or those of S1 not −log(S1max − S1)
    a, b = _fitted_a_and_b(spec, scorer)
    recomputed = functional.sirc(-confidences[parts.s1], [confidences[name] for name in parts.s2], a, b)
    if not torch.allclose(recomputed, confidences[parts.score].double(), rtol=1e-5, atol=1e-5):
        raise ValueError(
            f"the confidences of `{parts.score}` must follow from the scorer's a and b, but do not: pass the scorer "
            "that the evaluation was made with"
        )
    return replace(parts, a=a, b=b)


def _check(
    combinations: Sequence[Measured],
    confidences: ScoreValues,
    correct: Tensor,
    ood: Mapping[str, ScoreValues],
    level: float,
) -> Assumptions:
    check_level(level)
    check_groups({}, list(ood), also_taken=("id",))
    sizes = group_sizes(correct, ood)
    require_right(sizes)
    samples = Samples(combinations, confidences, correct, ood, level)
    measured = [samples.measure(parts) for parts in combinations]
    verdicts = {}
    for s2 in dict.fromkeys(one.s2_names for one in measured):
        kind, reasons = judge([one for one in measured if one.s2_names == s2], sizes)
        verdicts[s2] = f"{kind}: {'; '.join(reasons)}" if reasons else kind
    rows = [
        (one.score, one.s1, one.s2_names, of.removeprefix(PLAIN), *key, estimate.value, estimate.low, estimate.high)
        for one in measured
        for (of, *key), estimate in one.measures.items()
    ]
    columns = ["score", "s1", "s2", "of", "negative", "metric", "k", "slope", "value", "low", "high"]
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[6:], float))
    return Assumptions(table, verdicts, *recommend(measured, sizes), sizes, level, tuple(measured))
