"""Coverage of the error bars: how often 95% intervals of metrics and of paired differences cover the truth.

Run it from a checkout: `PYTHONPATH=src python benchmarks/coverage.py`. There are two normal scores with a correlation
of 0.8; the truth comes from a million even quantiles of the same distributions. Cells are the coverage of values and of
differences, in percent; `b` marks figures from the bootstrap. The last column is the share of repeats in which
`intervals` or `compare` warned of a few negatives far from ID✓.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

import sirc

METRICS = ("auroc", "aurr", "aurc", "augrc", "fpr@95", "risk@95")
_NORMAL = ((1.5, 1.2), (0.3, 0.2), (0.0, -0.3), (-0.5, -0.5))  # means of ID✓, ID✗ and the OOD sets, by each score
_APART = ((4.0, 3.5), (1.5, 1.2), (0.0, -0.3))
_FARTHER = ((4.5, 4.0), (1.5, 1.2), (0.0, -0.3))
_POPULATION = 1_000_000
_SEED = 1  # not 0: on those samples the constants of the intervals were chosen


@dataclass(frozen=True)
class Case:
    """Samples of ID✓, ID✗ and each OOD set; scores in whole multiples of `step`, if any."""

    name: str
    sizes: tuple[int, ...]
    step: float | None = None
    means: tuple[tuple[float, float], ...] = _NORMAL

    def evaluation(self, rng: np.random.Generator | None, scale: int = 1) -> sirc.Evaluation:
        """A random sample or, without `rng`, even quantiles, `scale` times as many."""
        groups = []
        for size, means in zip(self.sizes, self.means, strict=False):
            if rng is None:
                first = second = stats.norm.ppf((np.arange(size * scale) + 0.5) / (size * scale))
            else:
                first = rng.normal(size=size)
                second = 0.8 * first + 0.6 * rng.normal(size=size)
            values = np.stack([first + means[0], second + means[1]])
            groups.append(values if self.step is None else np.round(values / self.step) * self.step)
        inside = np.concatenate(groups[:2], axis=1)
        correct = np.arange(inside.shape[1]) < groups[0].shape[1]
        given = {name: (values, correct) for name, values in zip("ab", inside, strict=True)}
        ood = {f"set {k}": dict(zip("ab", values, strict=True)) for k, values in enumerate(groups[2:])}
        return sirc.evaluate(given, ood=ood, pool="datasets")


CASES = (
    Case("many", (1000, 300, 800)),
    Case("equal scores", (1000, 300, 800), step=0.5),
    Case("two sets", (600, 200, 300, 100)),
    Case("small groups", (200, 50, 100)),
    Case("tiny groups", (50, 20, 50)),
    Case("tinier groups", (30, 10, 30)),
    Case("1% errors", (1980, 20, 1000)),
    Case("1% errors, fewer", (990, 10, 500)),
    Case("far apart", (1000, 50, 500), means=_APART),
    Case("1% errors, far apart", (1980, 20, 1000), means=_APART),
    Case("1% errors, farther", (1980, 20, 1000), means=_FARTHER),
    Case("10 errors, far apart", (300, 10, 300), means=_APART),
    Case("6 errors, far apart", (300, 6, 300), means=_APART),
)


_EQUAL = ((1.5, 1.5), (0.3, 0.3), (0.0, 0.0))
SELECT_CASES = (
    Case("equally good", (800, 200, 500), means=_EQUAL),
    Case("equally good, few errors", (760, 40, 300), means=_EQUAL),
    Case("one is better", (800, 200, 500)),
    Case("one is better, few errors", (760, 40, 300)),
)


def covered(case: Case, repeats: int, draws: int) -> tuple[pd.DataFrame, float]:
    """By negative and metric, the share of repeats whose interval covers the truth; and the share with a warning."""
    negatives = ["wrong", "OOD mean", "pooled"] if len(case.sizes) > 3 else ["wrong", "pooled"]
    whole = case.evaluation(None, max(1, _POPULATION // max(case.sizes))).table
    truth = whole.set_index(["score", "negative", "metric"])["value"].to_dict()
    held: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    rng, warned = np.random.default_rng(_SEED), 0
    for _ in range(repeats):
        evaluation = case.evaluation(rng)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            one = evaluation.intervals(scores="a", negatives=negatives, draws=draws)
            two = evaluation.compare("a", negatives=negatives, draws=draws)
        warned += any("far from ID✓" in str(warning.message) for warning in said)
        for place, table in enumerate((one, two)):
            for row in table[table["metric"] != "error"].itertuples():
                key = row.negative, row.metric
                value = truth["a", *key] if not place else truth["b", *key] - truth["a", *key]
                held[key][place] += row.low - 1e-12 <= value <= row.high + 1e-12
                held[key][2] += row.method == "bootstrap"
    rows = [(*key, a / repeats, b / repeats, drawn / repeats / 2) for key, (a, b, drawn) in held.items()]
    return pd.DataFrame(rows, columns=["negative", "metric", "value", "difference", "bootstrap"]), warned / repeats


def chosen(case: Case, repeats: int) -> tuple[float, float]:
    """The share of repeats in which `select` calls one score worse, and in which intervals cover the true regrets."""

    def select(evaluation: sirc.Evaluation) -> pd.DataFrame:
        given = {score: (values, evaluation.correct) for score, values in evaluation.confidences.items()}
        return sirc.select(given, ood=evaluation.ood, draws=200).table.set_index("score")

    whole = select(case.evaluation(None, max(1, _POPULATION // 10 // max(case.sizes))))
    rng, called, held = np.random.default_rng(_SEED), 0, 0
    for _ in range(repeats):
        table = select(case.evaluation(rng))
        called += not table["tied"].all()
        for score, truth in whole["worst_regret"].items():
            low, high = table.loc[score, ["worst_low", "worst_high"]]
            held += low - 1e-12 <= truth <= high + 1e-12
    return called / repeats, held / repeats / len(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=200, help="of the bootstrap, where it is used")
    parser.add_argument("--case", action="append", help="name of a case; all by default")
    parser.add_argument("--select", action="store_true", help="check `sirc.select` instead: its calls and its regrets")
    options = parser.parse_args()
    if options.select:
        print("| samples of ID✓, ID✗, OOD | one is called worse | intervals hold the worst regret |\n|---|---|---|")
        for case in SELECT_CASES:
            if not options.case or case.name in options.case:
                called, held = chosen(case, options.repeats)
                sizes = ", ".join(map(str, case.sizes))
                print(f"| {case.name}: {sizes} | {100 * called:.1f} | {100 * held:.1f} |", flush=True)
        return
    print("| samples of ID✓, ID✗, OOD | against | AUROC | AURR | AURC | AUGRC | FPR@95 | Risk@95 | warned |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if options.case and case.name not in options.case:
            continue
        found, warned = covered(case, options.repeats, options.draws)
        table = found.set_index(["negative", "metric"])
        for negative in dict.fromkeys(table.index.get_level_values(0)):
            rows = [table.loc[(negative, metric)] for metric in METRICS]
            marks = [" b" if row["bootstrap"] > 0.5 else "" for row in rows]
            cells = [
                f"{100 * row['value']:.1f} / {100 * row['difference']:.1f}{mark}"
                for row, mark in zip(rows, marks, strict=True)
            ]
            what = f"{case.name}: {', '.join(map(str, case.sizes))} (× {options.repeats:,}"
            what += f", {options.draws} draws)" if any(marks) else ")"
            print(f"| {what} | {negative} | {' | '.join(cells)} | {100 * warned:.0f} |", flush=True)


if __name__ == "__main__":
    main()
