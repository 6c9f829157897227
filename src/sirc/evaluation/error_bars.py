"""Error bars of an evaluation, from the influence of each sample or, without a derivative, from the bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, final, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from sirc._utils.arrays import Floats
from sirc._utils.checks import check_at_least, check_choice, check_fraction, check_positive
from sirc._utils.precision import exact
from sirc._utils.text import quoted
from sirc._utils.warn import warn
from sirc.evaluation.inputs import COLUMNS, MEAN, WRONG, as_fractions, as_names
from sirc.metrics import (
    Metric,
    Negative,
    Placed,
    all_metrics,
    bootstrap_id_metrics,
    bootstrap_metrics,
    derivatives,
    find_metric,
    influence,
    largest_risk,
    lower_is_better,
    wilson_interval,
)

if TYPE_CHECKING:
    from sirc.evaluation.evaluation import Evaluation
    from sirc.evaluation.tabulated import Row

Method = Literal["auto", "bootstrap"]

FEWEST = 5  # samples of each stratum that an error from influences needs
EQUAL = 1e-6  # relative difference below which draws are equal: they have single precision
_ROUNDING = 1e-13
_UNSEEN = 3  # samples that may differ from all that were seen: the rule of three
# Numbers about the error of a result: the columns of its `Spread`, then `fewest`, `least`, `most` and `at_recall`.
_ERRORS, _SHIFTS = 11, slice(1, 3)
_FEW, _FAR = 12, 0.9  # error bars fall short for fewer negatives than this with an AUROC of this or more


@final
class Request:
    """The results that get error bars, at one α and β, and the method."""

    def __init__(
        self,
        ev: Evaluation,
        scores: Sequence[str] | None,
        negatives: Sequence[str] | None,
        alpha: float | None,
        beta: float | None,
        method: Method,
        draws: int,
        level: float,
        seed: int,
    ) -> None:
        check_choice("method", method, get_args(Method))
        if not ev.negatives:
            raise ValueError(f"wrong predictions or OOD sets are needed to compare with; this is {ev!r}")
        wanted = ev.negatives if negatives is None else as_names(negatives)
        if not wanted or not set(wanted) <= set(ev.negatives):
            got = next((quoted(name) for name in wanted if name not in ev.negatives), "none")
            raise ValueError(f"`negatives` must be among {', '.join(ev.negatives)}; got {got}")
        self.ev = ev.only(ev._wanted(scores))
        """With only the requested scores, at this α and β."""
        self.ev.alpha = as_fractions("alpha", ev._one("alpha", alpha))
        self.ev.beta = as_fractions("beta", ev._one("beta", beta))
        self.negatives = [name for name in ev.negatives if name in wanted]
        # A stratified bootstrap keeps the number of errors, so it cannot vary their share.
        self.with_id = method == "auto" and (negatives is None or WRONG in wanted)
        """Whether metrics of the ID data, such as the error, are requested too."""
        self.method, self.level = method, check_fraction("level", level)
        self.draws, self.seed = check_positive("draws", draws), check_at_least("seed", seed, 0)

    def alpha(self, negative: str) -> float:
        """The α of metrics against this negative: 1 against ID✗, where no input is OOD."""
        return 1.0 if negative == WRONG else float(self.ev.alpha)

    @property
    def ranked(self) -> list[str]:
        """The negatives to rank with; for the mean over sets, these are all sets."""
        sets = self.ev.ood if MEAN in self.negatives else ()
        return [name for name in dict.fromkeys([*self.negatives, *sets]) if name != MEAN]


def intervals(asked: Request) -> pd.DataFrame:
    """The table with the columns `se`, `low`, `high` and `method`."""
    level = asked.level
    frame, errors = _measured(asked, None)
    known = ~np.isnan(errors[:, 0])
    error, (low, high) = np.sqrt(errors[:, 0]), np.full((2, len(frame)), np.nan)
    value = frame["value"].to_numpy()[known]
    spreads, (fewest, least, most, at_recall) = _unpacked(errors[known])
    fits = (least <= value) & (value <= most) & (least < most)
    least, most = np.where(fits, least, 0.0), np.where(fits, most, 1.0)
    # A metric of perfectly separated groups has no spread of its own.
    shares = (at_recall > 0) | (spreads.variance <= (_ROUNDING * np.abs(value)) ** 2)
    as_shares = influence.share_interval(value - least, spreads.variance, most - least, fewest, level)
    as_areas = influence.area_interval(value, spreads, least, most, level)
    low[known], high[known] = (np.where(shares, least + a, b) for a, b in zip(as_shares, as_areas, strict=True))
    of_id = np.array([not _metric(label).per_negative for label in frame["metric"]])
    wilson = (frame["metric"] == "error").to_numpy()  # a share of the ID samples
    for drawn, rows in ((_drawn, ~known & ~of_id), (_drawn_id, of_id & ~wilson)):
        if (rest := np.flatnonzero(rows)).size:
            samples = drawn(asked, frame, rest)
            error[rest] = samples.std(1, ddof=1) if samples.shape[1] > 1 else np.nan
            low[rest], high[rest] = _percentiles(samples, level)
    right, n = int(asked.ev.correct.sum()), len(asked.ev.correct)
    share = wilson_interval(n - right, n, min(level, 1 - 1e-12))
    error[wilson] = (share.value * (1 - share.value) / n) ** 0.5
    low[wilson], high[wilson] = share.low, share.high
    method = np.where(wilson, "wilson", np.where(known, "analytic", "bootstrap"))
    return frame.assign(se=error, low=low, high=high, method=method)


def compare(asked: Request, baseline: str) -> pd.DataFrame:
    """The rows of the other scores, with the columns `difference`, `se`, `low`, `high`, `wins` and `method`."""
    from scipy.special import ndtr

    frame, errors = _measured(asked, baseline)
    keys = list(zip(frame["negative"], frame["metric"], strict=True))
    rows = {key: row for row, (key, score) in enumerate(zip(keys, frame["score"], strict=True)) if score == baseline}
    against = np.array([rows[key] for key in keys])
    value = frame["value"].to_numpy()
    difference = value - value[against]
    sign = np.array([-1.0 if lower_is_better(metric) else 1.0 for metric in frame["metric"]])
    known, error = ~np.isnan(errors[:, 0]), np.sqrt(errors[:, 0])
    low, high = influence.difference_interval(difference, _unpacked(errors)[0], asked.level)
    with np.errstate(divide="ignore", invalid="ignore"):
        wins = np.where(np.abs(difference) <= _ROUNDING, 0.5, ndtr(sign * difference / error))
    if (rest := np.flatnonzero(~known & (frame["score"] != baseline).to_numpy())).size:
        own, other = np.split(_drawn(asked, frame, np.concatenate([rest, against[rest]])), 2)
        off = own - other
        equal = np.abs(off) <= EQUAL * np.maximum(np.abs(own), np.abs(other))
        wins[rest] = ((off * sign[rest, None] > 0) & ~equal).mean(1) + equal.mean(1) / 2
        error[rest] = off.std(1, ddof=1) if asked.draws > 1 else np.nan
        low[rest], high[rest] = _percentiles(off, asked.level)
    method = np.where(known, "analytic", "bootstrap")
    frame = frame.assign(difference=difference, se=error, low=low, high=high, wins=wins, method=method)
    return frame[frame["score"] != baseline].reset_index(drop=True)


def _measured(asked: Request, baseline: str | None) -> tuple[pd.DataFrame, Floats]:
    """The rows of the table, and the numbers about the error of each or of its difference to the baseline, or NaN."""
    ev, with_id = asked.ev, asked.with_id and baseline is None
    shown = [WRONG, *(name for name in asked.negatives if name != WRONG)] if with_id else asked.negatives
    base: dict[str, _ScoreInfluences] = {}

    def measure(score: str) -> list[tuple[Row, Floats]]:
        placed, spreads = {}, {}
        if asked.method == "auto":
            placed = {name: ev._placed(score, name) for name in dict.fromkeys([*shown, *asked.ranked]) if name != MEAN}
            own = _influences(asked, placed)
            spreads = _spreads(asked, own, base)
            if score == baseline:
                base.update(own)
        rankings = {name: one.ranking for name, one in placed.items()}
        cells = ev._rows(score, shown, rankings.__getitem__ if rankings else partial(ev._rank, score))
        cells = [cell for cell in cells if with_id or _metric(cell[2]).per_negative]
        nothing = np.full(_ERRORS, np.nan)
        return [(cell, spreads.get((cell[1], _metric(cell[2]).name), nothing)) for cell in cells]

    # The baseline comes first, as all others are compared with it.
    measured: dict[str, list[tuple[Row, Floats]]] = {}
    for scores in ([s for s in ev.scores if s == baseline], [s for s in ev.scores if s != baseline]):
        measured |= zip(scores, _side_by_side(measure, scores, ev.correct.device), strict=True)
    rows, errors = zip(*(pair for score in ev.scores for pair in measured[score]), strict=True)
    frame, columns = pd.DataFrame(rows, columns=COLUMNS), np.stack(errors)
    if asked.method == "auto":
        _warn_of_few(asked, frame, columns, comparing=baseline is not None)
    return frame, columns


def _side_by_side(
    measure: Callable[[str], list[tuple[Row, Floats]]], scores: Sequence[str], device: torch.device
) -> list[list[tuple[Row, Floats]]]:
    """Measure each score; a CPU measures as many at once as torch has threads, with one thread each."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or not scores:
        return list(map(measure, scores))
    try:
        with ThreadPoolExecutor(min(len(scores), threads), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            # `exact` again, since modes such as `inference_mode` hold for one thread only.
            return list(pool.map(exact(measure), scores))
    finally:
        torch.set_num_threads(threads)  # the initializer also set that of the threads to come


def _warn_of_few(asked: Request, frame: pd.DataFrame, errors: Floats, *, comparing: bool) -> None:
    """Warn of the error bars that may be too narrow because there are too few samples."""
    _, (fewest, _, _, at_recall) = _unpacked(errors)
    right, recall, smallest = asked.ev.sizes["correct"], asked.ev.recall, min(filter(None, asked.ev.sizes.values()))
    metrics = [_metric(label) for label in frame["metric"]]
    drawn = np.isnan(errors[:, 0]) & [metric.derivative is not None for metric in metrics]
    near = drawn & ["recall" in metric.parameters for metric in metrics] & (right * (1 - recall) < derivatives.BEYOND)
    # Judged by the number of negatives and their distance, not by whether the one that matters most was drawn.
    keys = list(zip(frame["score"], frame["negative"], strict=True))
    far = (frame["metric"] == "auroc") & (fewest < _FEW) & (frame["value"] >= _FAR)
    sizes = {key: fewest[row] for row, key in enumerate(keys) if far[row]}
    doubts = {
        f"rest on a group of {min(sizes.values(), default=0):.0f} samples that lies far from ID✓": (
            np.array([key in sizes for key in keys]) & ((at_recall == 0) | comparing)
        ),
        f"come from a bootstrap, as hardly one of {right} ID✓ lies beyond a recall of {100 * recall:g}%": near,
        f"come from a bootstrap, as a group has {smallest} samples": drawn & ~near & (smallest < FEWEST),
    }
    for doubt, rows in doubts.items():
        if rows.any():
            named = ", ".join(dict.fromkeys(frame["metric"][rows]))
            warn(f"error bars of {named} {doubt}: 95% intervals may cover the truth in under 93%. Use more samples")


def _unpacked(errors: Floats) -> tuple[influence.Spread, Floats]:
    """The spreads of all rows, and `fewest`, `least`, `most` and `at_recall`."""
    return influence.Spread.of_rows(errors[:, :-4].T), errors[:, -4:].T


@dataclass(frozen=True)
class _ScoreInfluences:
    """One score's influences on each metric with a derivative."""

    influences: influence.Influences
    usable: npt.NDArray[np.bool_]
    """For each metric, whether there are enough samples."""
    overhang: float
    """The bias of AURC with few samples, and of what differs from it by a constant."""

    @cached_property
    def skewness(self) -> Floats:
        """The absolute skewness that each stratum adds to each metric."""
        return np.abs(influence.skewness(self.influences))


def _influences(asked: Request, placed: Mapping[str, Placed]) -> dict[str, _ScoreInfluences]:
    """By negative, the influences on all metrics."""
    ev, metrics = asked.ev, _with_derivative()
    own = {}
    for name in asked.ranked:
        one = placed[name]
        kind: Negative = "wrong" if name == WRONG else "ood"
        values = one.influences(metrics, kind, ev.recall, asked.alpha(name), ev.beta)
        fine = derivatives.resolved(one.ranking, ev.recall)
        enough = [_fewest(values, metric, name) >= FEWEST for metric in metrics]
        usable = [a and (fine or "recall" not in m.parameters) for a, m in zip(enough, metrics, strict=True)]
        bias = float(derivatives.overhang(one.ranking, asked.alpha(name), ev.beta))
        own[name] = _ScoreInfluences(values, np.array(usable), bias)
    if MEAN in asked.negatives:
        sets = [own[name] for name in ev.ood]
        own[MEAN] = _ScoreInfluences(
            influence.mean_influences([one.influences for one in sets]),
            np.all([one.usable for one in sets], axis=0),
            sum(one.overhang for one in sets) / len(sets),
        )
    return own


def _fewest(influences: influence.Influences, metric: Metric, negative: str) -> int:
    """The size of the smallest stratum that a metric depends on: not ID✗, where ID✓ is compared with OOD."""
    idle = "wrong" if metric.of_negative and negative != WRONG else None
    return min(part.shape[1] for stratum, part in influences.items() if stratum != idle)


def _spreads(
    asked: Request, own: dict[str, _ScoreInfluences], base: Mapping[str, _ScoreInfluences]
) -> dict[tuple[str, str], Floats]:
    """By negative and metric, the numbers about the error of a result, where there are enough samples."""
    ev = asked.ev
    errors: dict[tuple[str, str], Floats] = {}
    metrics = _with_derivative()
    names = [metric.name for metric in metrics]
    accuracy, beta = float(ev.correct.double().mean()), float(ev.beta)
    for negative in asked.negatives:
        one, other = own[negative], base.get(negative)
        both = [one] if other is None else [one, other]
        if other is None:
            spread = influence.spread(one.influences)
        else:
            spread = influence.difference_spread(one.influences, other.influences, (one.skewness + other.skewness) / 2)
        columns, usable = np.vstack(spread), np.all([each.usable for each in both], axis=0)
        alpha = asked.alpha(negative)
        mixture = accuracy, torch.tensor(alpha, dtype=torch.float64), ev.beta[0]
        for row, metric in enumerate(metrics):
            if not usable[row]:
                continue
            at_recall, fewest = "recall" in metric.parameters, _fewest(one.influences, metric, negative)
            least = float(metric.least(*mixture)) if metric.least else 0.0
            most = largest_risk(accuracy, alpha, beta, ev.recall if at_recall else 0.0) if metric.of_mixture else 1.0
            # A perfect ranking has an AURR of 0, whatever the order of what it rejects.
            judged = names.index("aurr") if metric.of_mixture and not at_recall else row
            column = columns[:, row]
            still = columns[0, judged] <= _ROUNDING**2
            if still and all(influence.is_constant(each.influences, judged) for each in both):
                # No sample has an influence; allow for three unseen ones (rule of three).
                column = influence.even_spread(0.0 if other is None else (_UNSEEN / 2 * most / fewest) ** 2, fewest - 1)
            elif at_recall and other is not None and column[0] > 0:
                # A share of few negatives moves in steps, which do not show where two scores agree on all of them.
                rounding = max(influence.rounding_variance(each.influences, row) for each in both)
                column = influence.even_spread(column[0] + rounding, np.inf)
            if other is None and metric.derivative is derivatives.aurc:
                column[_SHIFTS] -= one.overhang
            errors[negative, metric.name] = np.append(column, [fewest, least, most, at_recall])
    return errors


def _drawn(asked: Request, frame: pd.DataFrame, rows: npt.NDArray[np.int64]) -> Floats:
    """Some rows' values in each draw, (rows, draws)."""
    ev, wanted = asked.ev, frame.iloc[rows]
    scores, negatives = (list(dict.fromkeys(wanted[name])) for name in ("score", "negative"))
    sets = dict.fromkeys([*negatives, *(ev.ood if MEAN in negatives else ())])
    samples = bootstrap_metrics(
        {score: ev.confidences[score] for score in scores},
        ev.correct,
        ev.ood,
        {name: ev._members(name) for name in sets if name not in (WRONG, MEAN)},
        equal_sets=ev.pool == "datasets",
        recall=ev.recall,
        alpha=float(ev.alpha),
        beta=float(ev.beta),
        draws=asked.draws,
        seed=asked.seed,
    )
    drawn = []
    for score, negative, label in wanted[COLUMNS[:3]].itertuples(index=False):
        names = list(ev.ood) if negative == MEAN else [negative]
        drawn.append(torch.stack([samples[score, name, _metric(label).name] for name in names]).mean(0))
    return torch.stack(drawn).numpy()


def _drawn_id(asked: Request, frame: pd.DataFrame, rows: npt.NDArray[np.int64]) -> Floats:
    """Some rows' values in each draw, for metrics of the ID data, (rows, draws)."""
    ev, wanted = asked.ev, frame.iloc[rows]
    metrics = [_metric(label) for label in dict.fromkeys(wanted["metric"])]
    draw = partial(bootstrap_id_metrics, metrics, recall=ev.recall, draws=asked.draws, seed=asked.seed)
    samples = {score: draw(ev.confidences[score], ev.correct) for score in ev.scores}
    drawn = [samples[s][_metric(label).name] for s, label in zip(wanted["score"], wanted["metric"], strict=True)]
    return torch.stack(drawn).numpy()


def _percentiles(samples: Floats, level: float) -> tuple[Floats, Floats]:
    if not samples.shape[1]:
        return np.full(len(samples), np.nan), np.full(len(samples), np.nan)
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=1)
    return low, high


def _metric(label: str) -> Metric:
    metric = find_metric(label)
    assert metric is not None
    return metric


def _with_derivative() -> list[Metric]:
    return [metric for metric in all_metrics() if metric.per_negative and metric.derivative]
