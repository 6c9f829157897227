"""A service's monitor, with its history and its state on disk, and the log of decisions."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np
import torch
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sirc._utils.checks import check_path
from sirc._utils.files import PathLike, atomic_write, read_safetensors, try_lock, write_safetensors
from sirc._utils.imports import needing
from sirc.deploy.monitor import Monitor, Monitoring
from sirc.deploy.onnx import OnnxModel, OnnxRow
from sirc.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("sirc.deploy.serve")
SECONDS = 5.0  # between two writes: a kill loses no more
_POINTS = 256  # most points of the history: when there are more, every second one is dropped
_FIELDS = ("time", "inputs", "rate", "low", "high", "e_value", "ood_share")
_ROWS = 20_000  # most rows in one file of the log
_KEPT = 100_000  # most rows that wait while the log cannot be written
LogRow: TypeAlias = tuple[datetime, str, int, int, str | None, float, bool, str | None]
"""A row of the log: the columns of `_table`, the last five of which are an `OnnxRow`."""


@final
class Watch:
    """Watches a service's decisions in the order of its answers; any thread may ask for its state."""

    def __init__(
        self, model: OnnxModel, state: PathLike | None = None, log: PathLike | None = None, delta: float = 0.05
    ) -> None:
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._model, self._delta = model, delta
        self._state = None if state is None else check_path("state", state)
        self._history: list[tuple[float, ...]] = []
        self._now, self._saved = 0.0, -1
        self.why_not = _why_not(model)
        """Why no monitor runs; empty if one does."""
        self._monitor: Monitor | None = None
        with _locked(self._state):
            if not self.why_not:
                self._read_state()
            elif self._state is not None:
                raise ValueError(f"`state` must be left out, as no monitor runs: {self.why_not}")
            self.log = None if log is None else DecisionLog(log)
            self.write()  # an unwritable place is reported now, not while requests wait

    def _read_state(self) -> None:
        calibration, threshold = self._model.calibration, self._model.threshold
        assert calibration is not None
        if self._state is not None and self._state.exists():
            self._monitor, self._history = Monitor.load(self._state, calibration, threshold), _history_in(self._state)
            if self._monitor.delta != self._delta:
                raise StoreError(
                    f"'{self._state}' can only be continued with its own `delta`: it has {self._monitor.delta:g}, and "
                    f"this service {self._delta:g}. Give it the former, or name another file"
                )
        else:
            self._monitor, self._history = Monitor(calibration, threshold, self._delta), []

    def take(self, rows: Sequence[OnnxRow], request: str) -> None:
        """Take the decisions about one request's images."""
        with self._lock:
            self._now = max(self._now, time.time())  # a clock may be set back; rows keep their order
            if self._monitor is not None:
                values = np.array([row.confidence for row in rows])
                self._monitor.update(np.where(np.isnan(values), -np.inf, values))
                inputs, last = self._monitor.inputs, self._history[-1][1] if self._history else 0
                if inputs - last >= 2 ** math.ceil(math.log2(max(1.0, inputs / _POINTS))):
                    self._history.append(_point(self._now, self._monitor.report()))
                if len(self._history) > _POINTS:
                    del self._history[::2]
            if self.log is not None:
                now = datetime.fromtimestamp(self._now, UTC)
                self.log.add([(now, request, image, *row) for image, row in enumerate(rows)])

    def about(self) -> dict[str, object]:
        """The monitor's report in words and numbers, with its history, for the page and as JSON."""
        if self._monitor is None:
            return {"running": False, "title": "The monitor does not run", "words": {"why": self.why_not}}
        with self._lock:
            report = self._monitor.report()
            points = [*self._history]
            if self._monitor.inputs > (points[-1][1] if points else 0):
                points.append(_point(self._now, report))
        title, words = report.words()
        history = dict(zip(_FIELDS, np.reshape(points, (-1, len(_FIELDS))).T.tolist(), strict=True))
        history["inputs"] = list(map(int, history["inputs"]))
        return {"running": True, "title": title, "words": words, "report": report.to_dict(), "history": history}

    def collect(self) -> Iterator[Metric]:
        """Give Prometheus the monitor's gauges."""

        def gauge(name: str, text: str, value: float) -> Metric:
            return GaugeMetricFamily(f"sirc_monitor_{name}", text, value=value)

        yield gauge("running", "Whether the monitor runs: it needs a graph with its calibration.", not self.why_not)
        if self.log is not None:
            yield CounterMetricFamily("sirc_log_lost", "Decisions that could not be written down.", value=self.log.lost)
        if self._monitor is None:
            return
        with self._lock:
            now = self._monitor.report()
        yield gauge("inputs", "Images that the monitor has seen, before a restart too.", now.sizes["production"])
        yield gauge("alarm", "1 once the acceptance rate was shown to differ from the promised one.", now.alarm)
        yield gauge("e_value", "The capital of bets against the promised rate.", now.e_value)
        yield gauge("e_value_alarm", "The capital that raises the alarm.", 2 / now.delta)
        yield gauge("p_value", "1 over the most that the capital has been.", now.p_value)
        yield gauge("acceptance", "The share of images accepted.", now.rate)
        yield gauge("acceptance_low", "The lower limit of its rate, valid at any time.", now.interval[0])
        yield gauge("acceptance_high", "The upper limit of its rate, valid at any time.", now.interval[1])
        yield gauge("promised", "The share of calibration rows accepted.", now.promised)
        yield gauge("promised_low", "The lower limit of the promised rate.", now.promised_interval[0])
        yield gauge("promised_high", "The upper limit of the promised rate.", now.promised_interval[1])
        yield gauge("ood_share", "At least this share of the images is unlike the calibration's.", now.ood_share)

    def write(self) -> None:
        """Write the state and the log if there is something new."""
        self._write_state()
        if self.log is not None:
            self.log.write()

    def _write_state(self) -> None:
        if self._state is None or self._monitor is None:
            return
        with self._writing:
            with self._lock:
                inputs, (tensors, about) = self._monitor.inputs, self._monitor.contents()
                tensors["history"] = torch.tensor(self._history, dtype=torch.float64).reshape(-1, len(_FIELDS))
            if inputs != self._saved:
                write_safetensors(self._state, tensors, about, overwrite=True)
                self._saved = inputs

    @asynccontextmanager
    async def running(self, _: object) -> AsyncGenerator[None, None]:
        """Write every few seconds while the service runs, and at its end."""
        with _locked(self._state):
            with self._lock:  # another service may have saved a newer state since this object was made
                if self._state is not None and self._monitor is not None and self._monitor.inputs == self._saved:
                    self._read_state()
            task = asyncio.create_task(self._keep_writing())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.to_thread(self._try_to_write)

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            await asyncio.to_thread(self._try_to_write)

    def _try_to_write(self) -> None:
        """Write the state and the log; log failures, so that the service goes on."""
        for what, write in (("state", self._write_state), ("log", self.log and self.log.write)):
            try:
                if write is not None:
                    write()
            except Exception:  # decisions matter more than their record
                _log.exception("the %s cannot be written; it is tried again", what)


@contextmanager
def _locked(state: Path | None) -> Iterator[None]:
    """Lock a state file for one service: two that shared it would lose each other's counts."""
    if state is None or sys.platform == "win32":
        yield
        return
    # A file of its own, as each write replaces the state. It is never deleted, as another service may have locked it.
    state.parent.mkdir(parents=True, exist_ok=True)
    with open(state.with_name(f".{state.name}.lock"), "ab") as file:
        locked = try_lock(file)
        if locked is False:
            raise StoreError(
                f"'{state}' must be the state of one service; another one that runs has it. Stop that one, or name "
                "another file"
            )
        if locked is None:
            _log.warning("'%s' cannot be locked here: make sure that no other service uses it", state)
        yield


def _point(now: float, report: Monitoring) -> tuple[float, ...]:
    """A point of the history: its `_FIELDS`."""
    return (now, report.sizes["production"], report.rate, *report.interval, report.e_value, report.ood_share)


def _why_not(model: OnnxModel) -> str:
    """Why no monitor can watch this graph; empty if one can."""
    if model.calibration is None and model.threshold.rule == "given":
        return "the threshold was given, not calibrated"
    if model.calibration is None:
        return "the graph was exported by an earlier version, without its calibration's confidences. Export it again"
    return "" if model.threshold.feasible else "no threshold keeps the promise, and nothing is accepted"


def _history_in(path: Path) -> list[tuple[float, ...]]:
    history = read_safetensors(path)[0].get("history", torch.empty(0, len(_FIELDS)))
    if history.ndim != 2 or history.shape[1] != len(_FIELDS):
        raise StoreError(f"'{path}' has the history of another version of sirc. Delete it to start again")
    return [tuple(point) for point in history.double().tolist()]


@final
class DecisionLog:
    """A folder of Parquet files that can be read as one table: decisions with time and request, never images.

    Each write replaces the newest file atomically by one that has the new rows too; a full file starts the next one.
    """

    def __init__(self, folder: PathLike) -> None:
        with needing("a log of decisions", "pyarrow", "serve"):
            import pyarrow.parquet  # noqa: F401
        self.folder = check_path("log", folder)
        if self.folder.suffix != ".parquet":
            raise ValueError(f"a log must be a folder whose name ends in `.parquet`; got '{folder}'. Rename it")
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"a log must be a folder, as a Parquet file cannot grow; '{folder}' is a file")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise PermissionError(f"'{folder}' may not be written. Mend that, or choose another place")
        self.lost = 0
        """Rows that were dropped because nothing could be written for too long."""
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._rows: list[LogRow] = []  # of the newest file, followed by those not yet written
        self._written, self._file = 0, _new_name(self.folder)

    def add(self, rows: list[LogRow]) -> None:
        """Keep rows for the next write."""
        with self._lock:
            room = max(0, _KEPT - (len(self._rows) - self._written))
            self._rows += rows[:room]
            self.lost += len(rows[room:])

    def write(self) -> None:
        """Write the new rows."""
        from pyarrow.parquet import write_table

        with self._writing:
            due = len(self._rows) - self._written  # later rows wait: else a busy service would write without end
            while due > 0:
                table = _table(self._rows[:_ROWS])
                atomic_write(self._file, partial(write_table, table, compression="zstd"))
                with self._lock:
                    due -= len(table) - self._written
                    self._written = len(table)
                    if self._written == _ROWS:
                        del self._rows[:_ROWS]
                        self._written, self._file = 0, _new_name(self.folder)


def _new_name(folder: Path) -> Path:
    """A file name that sorts by time and is unique among services."""
    return folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{secrets.token_hex(4)}.parquet"


def _table(rows: list[LogRow]) -> pa.Table:
    import pyarrow as pa

    types = {
        "time": pa.timestamp("us", tz="UTC"),
        "request": pa.string(),
        "image": pa.int32(),
        "label": pa.int64(),
        "class": pa.string(),
        "confidence": pa.float64(),
        "accepted": pa.bool_(),
        "reason": pa.string(),
    }
    return pa.table(dict(zip(types, zip(*rows, strict=True), strict=True)), schema=pa.schema(types))
