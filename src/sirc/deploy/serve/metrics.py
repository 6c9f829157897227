"""What a service counts, for Prometheus: requests, decisions, refusals, and confidences, so that drift is seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sirc.deploy.onnx_model import Decided, Deployed

KINDS = (
    *("no_image", "content_type", "too_large", "too_many", "too_many_pixels", "not_an_image", "damaged", "wrong_size"),
    *("malformed", "timeout", "disconnected", "busy", "internal"),
)
"""Why a request may get no decision."""
_STEPS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@final
class _Registry(CollectorRegistry):
    """Leaves out when each counter began, half of all series; the client's switch would be for the whole process."""

    def collect(self) -> Iterable[Metric]:
        """All else."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


@final
class Metrics:
    """The counters of one service, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, model: Deployed) -> None:
        self.registry = registry = _Registry()
        self._requests = Counter(
            "sirc_requests", "Requests for decisions, by HTTP status.", ["status"], registry=registry
        )
        self._errors = Counter("sirc_errors", "Requests without a decision, by reason.", ["kind"], registry=registry)
        self._accepted = Counter("sirc_accepted", "Images accepted.", registry=registry)
        self._rejected = Counter("sirc_rejected", "Images rejected.", registry=registry)
        self._odd = Counter("sirc_confidence_nonfinite", "Confidences that are no finite number.", registry=registry)
        self._confidence = Histogram(
            "sirc_confidence",
            "Confidences; the bounds are the calibration's twentieths, where it is known, and the threshold.",
            buckets=buckets(model),
            registry=registry,
        )
        self._seconds = Histogram(
            "sirc_request_seconds", "From the request's head to its answer.", buckets=_SECONDS, registry=registry
        )
        self.waiting = Gauge("sirc_requests_in_progress", "Requests begun and not answered.", registry=registry)
        Gauge("sirc_threshold", "Accepted is a confidence of at least this.", registry=registry).set(
            model.threshold.value
        )
        promised = model.threshold.estimates.get("coverage")
        if promised is not None:
            words = "The share of the calibration's ID rows that is accepted."
            Gauge("sirc_calibration_acceptance", words, registry=registry).set(promised)
        for kind in KINDS:
            self._errors.labels(kind)

    def decided(self, found: Decided) -> None:
        """Count decisions."""
        accepted = int(found.accepted.sum())
        self._accepted.inc(accepted)
        self._rejected.inc(len(found.accepted) - accepted)
        for value in found.confidence.tolist():
            # One NaN would make the histogram's sum NaN for good.
            if math.isfinite(value):
                self._confidence.observe(value)
            else:
                self._odd.inc()

    def answered(self, status: int, kind: str | None, seconds: float) -> None:
        """Count a request that is over."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        if kind is not None:
            self._errors.labels(kind).inc()

    def text(self) -> bytes:
        """All of it as Prometheus reads it."""
        return generate_latest(self.registry)


def buckets(model: Deployed) -> Sequence[float]:
    """Bounds for confidences: the calibration's quantiles, or steps around the threshold; the threshold is one."""
    quantiles = [float(value) for value in model.facts.get("quantiles") or ()]
    limit = model.threshold.value
    centre = limit if math.isfinite(limit) else 0.0
    steps = quantiles or [centre + sign * step for step in _STEPS for sign in (-1, 1)]
    return sorted({value for value in (*steps, centre) if math.isfinite(value)})
