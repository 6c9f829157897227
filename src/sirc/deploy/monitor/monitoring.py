"""Monitoring of production, in one call or step by step: the state, its report and its file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_number, check_path
from sirc._utils.files import PathLike, read_header, read_safetensors, write_safetensors
from sirc.deploy.monitor.betting import Bets, OodShare, interval_anywhere, rate_interval
from sirc.deploy.threshold.counts import as_confidences, check_inner, sizes, typical_size
from sirc.deploy.threshold.result import Threshold
from sirc.deploy.threshold.text import as_plain, certainty, percent_above, percent_below, percent_near, report
from sirc.errors import StoreError
from sirc.metrics import as_scores, binomial_interval

_VERSION = 1
_USUAL = 1e-4  # the share by which confidences of a float32 network may change with its batch size
_ROUNDING = 1e-6  # the share of a margin that is lost or gained by rounding when it is added to a confidence


@final
@dataclass(frozen=True)
class Monitoring:
    """The state of production so far, valid at any time; `print` it for a report."""

    alarm: bool
    """True once the acceptance rate was shown to differ from the promised one."""
    first_alarm: int | None
    """The index of the input that raised the alarm, counted from 0."""
    rate: float
    """The share of production input accepted; NaN before the first."""
    interval: tuple[float, float]
    """Contains production's acceptance rate, if constant, at all times at once with probability 1 − δ."""
    promised: float
    """The share of calibration rows accepted."""
    promised_interval: tuple[float, float]
    """Contains the calibration population's acceptance rate with probability 1 − δ/2: Clopper–Pearson's interval,
    or, for a `Threshold` of least cost, that of Dvoretzky, Kiefer and Wolfowitz, valid at all thresholds at once. It
    allows for rows that cross the threshold when their confidences change within its margin."""
    e_value: float
    """The current capital of the bets against every rate in `promised_interval`."""
    p_value: float
    """1 over the largest capital so far, at most 1; the alarm is raised at δ/2."""
    ood_share: float
    """With probability 1 − δ at least this share of the input is not ID; 0 if nothing could be shown."""
    delta: float
    sizes: Mapping[str, int]
    """"calibration" and "production"."""

    def words(self) -> tuple[str, dict[str, str]]:
        """The report: a title, and its parts by name."""
        if not self.sizes["production"]:
            return f"No production input yet; {percent_near(self.promised)} accepted was promised", {}
        title = "No alarm: the acceptance rate is compatible with the promised one"
        if self.alarm:
            change = "fewer" if self.rate < self.promised else "more"
            title = f"ALARM at input {self.first_alarm}: the acceptance rate is not the promised one"
            title += f" ({change} are accepted)"
        share = "none could be shown"
        if self.ood_share > 0:
            least = f"with probability {certainty(self.delta)} at least {percent_below(self.ood_share)} of the input"
            share = f"{least} is not like the calibration's ID data"
        parts = {
            "accepted": f"{percent_near(self.rate)} ({_limits(self.interval)} at any time)",
            "promised": f"{percent_near(self.promised)} ({_limits(self.promised_interval)})",
            "evidence": f"e = {self.e_value:.3g}, p = {self.p_value:.3g}; the alarm is at p ≤ {self.delta / 2:g}",
            "OOD share": share,
            "rows": "{production:,} production inputs against {calibration:,} calibration rows".format(**self.sizes),
        }
        return title, parts

    def __str__(self) -> str:
        return report(*self.words())

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; infinities and NaN are strings."""
        plain: dict[str, object] = as_plain(asdict(self))
        return plain


def _limits(interval: tuple[float, float]) -> str:
    return f"{percent_below(interval[0])} to {percent_above(interval[1])}"


@final
class Monitor:
    """Watches production confidences as they come, in constant memory.

    `calibration` are confidences of ID rows. `threshold` is a `Threshold`, which may come from the same rows, or a
    number, which must not. The alarm is raised when bets against every acceptance rate that the calibration leaves
    possible (`promised_interval`, at δ/2) reach a capital of 2/δ. If production is like the calibration, this ever
    happens with probability at most δ, however long and often one looks.

    Example:
        >>> import numpy as np
        >>> from sirc.deploy.monitor import Monitor
        >>> watch = Monitor(np.linspace(0, 1, 1000), threshold=0.05)
        >>> watch.update(np.full(20, 0.5))  # all accepted
        False
        >>> watch.update(np.zeros(20))  # all rejected
        True
        >>> watch.report().first_alarm, watch.inputs
        (28, 40)
    """

    def __init__(self, calibration: ArrayLike, threshold: float | Threshold, delta: float = 0.05) -> None:
        rows = as_confidences("calibration", calibration)
        margin, searched = 0.0, False
        if isinstance(threshold, Threshold):
            margin, searched, threshold = threshold.margin, threshold.rule == "cost", threshold.value
        self.threshold = check_number("threshold", threshold)
        if math.isnan(self.threshold):
            raise ValueError("`threshold` must be a number; got NaN, which accepts nothing. Pass one that is feasible.")
        self.delta = check_inner("delta", delta)
        n = len(rows)
        self._calibration, self._promised = n, int((rows >= self.threshold).sum()) / n
        # The threshold's margin lets confidences change by a share of their size, or of the typical size: in
        # production a calibration row may lie that much lower or higher.
        typical = typical_size(rows)
        share = margin / max(abs(self.threshold + margin), typical) if margin else 0.0
        size = sizes(rows, typical)
        least = int((rows - share * (1 - _ROUNDING) * size >= self.threshold).sum())
        most = int((rows + share * (1 + _ROUNDING) * size >= self.threshold).sum())
        # The search for the least cost may favour a threshold at which these rows are accepted more or less often than
        # their population. Only limits that hold at all thresholds at once allow for that.
        interval = interval_anywhere if searched else binomial_interval
        self._interval = interval(least, n, self.delta / 2)[0], interval(most, n, self.delta / 2)[1]
        self._bets = Bets(*self._interval)
        # Even without a margin, changed last digits must not make a repeated row OOD.
        self._share = OodShare(rows - max(share, _USUAL) * (1 + _ROUNDING) * size, self.delta)
        self._first: int | None = None
        settings = json.dumps([self.threshold, margin, searched]).encode()
        self._digest = hashlib.sha256(np.sort(rows).astype("<f8").tobytes() + settings).hexdigest()

    def update(self, confidences: ArrayLike) -> bool:
        """Take the confidences of the next inputs, in order; return whether there has been an alarm."""
        new = as_scores("confidences", confidences).cpu().double().numpy()
        reached = self._bets.update(new >= self.threshold, math.log(2 / self.delta))
        self._first = reached if self._first is None else self._first
        self._share.update(new)
        return self._first is not None

    @property
    def inputs(self) -> int:
        """The number of inputs so far."""
        return self._bets.accepted + self._bets.rejected

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write the counts so far and a digest of their calibration, but no confidences."""
        write_safetensors(path, *self.contents(), overwrite=overwrite)

    def contents(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The contents of a file."""
        about = {"format": "sirc-monitor", "version": _VERSION, "delta": self.delta, "first_alarm": self._first}
        tensors = {
            "decided": torch.tensor([self._bets.accepted, self._bets.rejected]),
            "capital": torch.tensor([self._bets.log_capital, self._bets.log_peak], dtype=torch.float64),
            "below": torch.from_numpy(self._share.below.copy()),
        }
        return tensors, {"sirc": json.dumps({**about, "calibration": self._digest})}

    @classmethod
    def load(cls, path: PathLike, calibration: ArrayLike, threshold: float | Threshold) -> Self:
        """Continue from a saved state, which must belong to this calibration and threshold."""
        tensors, metadata = read_safetensors(check_path("path", path))
        about = read_header(path, metadata, "monitor", _VERSION)
        made = cls(calibration, threshold, about.get("delta", 0.05))
        if about.get("calibration") != made._digest:
            raise StoreError(
                f"'{path}' must belong to this calibration and threshold, to go on with them; it belongs to others. "
                "Name another file, or delete it to start again"
            )
        try:
            made._bets.accepted, made._bets.rejected = map(int, tensors["decided"])
            made._bets.log_capital, made._bets.log_peak = map(float, tensors["capital"])
            made._share.below[:] = tensors["below"].numpy()
            made._first = None if about["first_alarm"] is None else int(about["first_alarm"])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"'{path}' is not whole: {error}. Delete it to start again") from error
        return made

    def report(self) -> Monitoring:
        """The state so far."""
        accepted, total = self._bets.accepted, self.inputs
        return Monitoring(
            alarm=self._first is not None,
            first_alarm=self._first,
            rate=accepted / total if total else math.nan,
            interval=rate_interval(accepted, total, self.delta) if total else (0.0, 1.0),
            promised=self._promised,
            promised_interval=self._interval,
            e_value=math.exp(min(700.0, self._bets.log_capital)),
            p_value=math.exp(-self._bets.log_peak),
            ood_share=self._share.bound(total) if total else 0.0,
            delta=self.delta,
            sizes={"calibration": self._calibration, "production": total},
        )


def monitor(
    calibration: ArrayLike, production: ArrayLike, threshold: float | Threshold, *, delta: float = 0.05
) -> Monitoring:
    """Compare production confidences, in the order in which they came, with the calibration's.

    It tests whether the acceptance rate is the promised one, and bounds the share of OOD input from below (if ID input
    has not changed). `Monitor` does the same step by step.
    """
    watch = Monitor(calibration, threshold, delta)
    watch.update(as_confidences("production", production))
    return watch.report()
