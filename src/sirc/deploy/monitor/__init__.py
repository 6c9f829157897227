"""Is production what was calibrated? From unlabelled confidences: the acceptance rate, and the share of OOD input."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_fraction, check_number
from sirc.deploy.monitor.betting import Bets, interval_anywhere, rate_interval
from sirc.deploy.monitor.ood_share import OodShare
from sirc.deploy.threshold.counts import as_confidences
from sirc.deploy.threshold.result import Threshold
from sirc.deploy.threshold.text import certainty, percent, percent_above, percent_below
from sirc.metrics import as_scores, binomial_interval

__all__ = ["Monitor", "Monitoring", "monitor"]


@final
@dataclass(frozen=True)
class Monitoring:
    """What production shows so far; `print` it for a report in words. All of it may be looked at at any time."""

    alarm: bool
    """Whether the acceptance rate was shown to differ from the promised one; stays once it is raised."""
    first_alarm: int | None
    """The index of the input that raised it, counted from 0."""
    rate: float
    """The share of production input accepted; NaN before the first."""
    interval: tuple[float, float]
    """Holds production's acceptance rate, if constant, at all times at once with probability 1 − δ."""
    promised: float
    """The share of calibration rows accepted."""
    promised_interval: tuple[float, float]
    """Holds the acceptance rate of the calibration's population with probability 1 − δ/2: Clopper–Pearson's, or for a
    `Threshold` of least cost that of Dvoretzky, Kiefer and Wolfowitz, which holds at all thresholds at once."""
    e_value: float
    """The capital of bets against every rate in `promised_interval`, now."""
    p_value: float
    """1/(the most that capital has been), at most 1; the alarm is at δ/2."""
    ood_share: float
    """With probability 1 − δ at least this share of the input is not ID; 0 where nothing was shown."""
    delta: float
    sizes: Mapping[str, int]
    """"calibration" and "production"."""

    def __str__(self) -> str:
        rows = f"{self.sizes['production']:,} production inputs against {self.sizes['calibration']:,} calibration rows"
        if not self.sizes["production"]:
            return f"No production input yet; {percent(self.promised)} accepted was promised"
        if self.alarm:
            first = (
                f"ALARM at input {self.first_alarm}: the acceptance rate is not the promised one "
                f"({'fewer' if self.rate < self.promised else 'more'} are accepted)"
            )
        else:
            first = "No alarm: the acceptance rate is compatible with the promised one"
        share = (
            f"with probability {certainty(self.delta)} at least {percent_below(self.ood_share)} of the input is not "
            "like the calibration's ID data"
            if self.ood_share > 0
            else "none could be shown"
        )
        parts = {
            "accepted": f"{percent(self.rate)} ({_limits(self.interval)} at any time)",
            "promised": f"{percent(self.promised)} ({_limits(self.promised_interval)})",
            "evidence": f"e = {self.e_value:.3g}, p = {self.p_value:.3g}; the alarm is at p ≤ {self.delta / 2:g}",
            "OOD share": share,
            "rows": rows,
        }
        lines = [first]
        for name, text in parts.items():
            lines += textwrap.wrap(text, 110, initial_indent=f"  {name:<10} ", subsequent_indent=" " * 13)
        return "\n".join(lines)


def _limits(interval: tuple[float, float]) -> str:
    return f"{percent_below(interval[0])} to {percent_above(interval[1])}"


@final
class Monitor:
    """Watches production confidences as they come, in memory that does not grow.

    `calibration` are confidences of ID rows drawn as the promise was, `threshold` a `Threshold`, which may come from
    the same rows, or a number, which may not. The alarm: bets against every acceptance rate that the calibration leaves
    possible (`promised_interval`, at δ/2) reach a capital of 2/δ. If production is as the calibration, that happens
    ever, however long and often one looks, with probability at most δ.
    """

    def __init__(self, calibration: ArrayLike, threshold: float | Threshold, delta: float = 0.05) -> None:
        rows = as_confidences("calibration", calibration)
        self.threshold = check_number("threshold", threshold.value if isinstance(threshold, Threshold) else threshold)
        if math.isnan(self.threshold):
            raise ValueError("`threshold` must be a number; got NaN, which accepts nothing. Pass one that is feasible.")
        self.delta = check_fraction("delta", delta)
        if self.delta in (0, 1):
            raise ValueError(f"`delta` must lie strictly between 0 and 1; got {self.delta:g}")
        accepted, n = int((rows >= self.threshold).sum()), len(rows)
        self._calibration, self._promised = n, accepted / n
        # The least cost is found by a search, which prefers a threshold at which these rows happen to be accepted more,
        # or less, than their population. Only limits that hold wherever it ends allow for that.
        searched = isinstance(threshold, Threshold) and threshold.rule == "cost"
        self._interval = (interval_anywhere if searched else binomial_interval)(accepted, n, self.delta / 2)
        self._bets = Bets(*self._interval)
        self._share = OodShare(rows, self.delta)
        self._first: int | None = None

    def update(self, confidences: ArrayLike) -> bool:
        """Take the next inputs' confidences, in their order; say whether there has been an alarm."""
        new = as_scores("confidences", confidences).cpu().double().numpy()
        reached = self._bets.update(new >= self.threshold, math.log(2 / self.delta))
        self._first = reached if self._first is None else self._first
        self._share.update(new)
        return self._first is not None

    def report(self) -> Monitoring:
        """What has been seen so far."""
        accepted, total = self._bets.accepted, self._bets.accepted + self._bets.rejected
        return Monitoring(
            alarm=self._first is not None,
            first_alarm=self._first,
            rate=accepted / total if total else math.nan,
            interval=rate_interval(accepted, total, self.delta) if total else (0.0, 1.0),
            promised=self._promised,
            promised_interval=self._interval,
            e_value=math.exp(min(700.0, self._bets.log_capital)),
            p_value=math.exp(-self._bets.log_most),
            ood_share=self._share.bound() if total else 0.0,
            delta=self.delta,
            sizes={"calibration": self._calibration, "production": total},
        )


def monitor(
    calibration: ArrayLike, production: ArrayLike, threshold: float | Threshold, *, delta: float = 0.05
) -> Monitoring:
    """Compare production confidences, in the order in which they came, with the calibration's.

    Is the acceptance rate what was promised (a test valid at any time), and at least how much of the input is OOD (from
    the confidences alone, if ID input is as it was)? `Monitor` does the same step by step.
    """
    watch = Monitor(calibration, threshold, delta)
    watch.update(as_confidences("production", production))
    return watch.report()
