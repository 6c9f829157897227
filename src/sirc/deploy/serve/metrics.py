"""Prometheus metrics of a service: requests, refusals, decisions, and confidences, which show drift."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sirc.deploy.onnx_model import OnnxDecision, OnnxModel

KINDS = (
    *("no_image", "content_type", "too_large", "too_many", "too_many_pixels", "not_an_image", "damaged", "wrong_size"),
    *("malformed", "timeout", "disconnected", "busy", "internal"),
)
"""Reasons why a request gets no decision."""
_STEPS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@final
class _Registry(CollectorRegistry):
    """Leaves out the `_created` samples, half of all series; the library's switch is for the whole process."""

    def collect(self) -> Iterable[Metric]:
        """All samples but those."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


@final
class Metrics:
    """The metrics of one service, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, model: OnnxModel) -> None:
        self.registry = registry = _Registry()
        self._requests = Counter(
            "sirc_requests", "Requests for decisions, by HTTP status.", ["status"], registry=registry
        )
        self._errors = Counter("sirc_errors", "Requests without a decision, by reason.", ["kind"], registry=registry)
        self._accepted = Counter("sirc_accepted", "Images accepted.", registry=registry)
        self._rejected = Counter("sirc_rejected", "Images rejected.", registry=registry)
        self._nonfinite = Counter("sirc_confidence_nonfinite", "Confidences that are not finite.", registry=registry)
        self._confidence = Histogram(
            "sirc_confidence",
            "Confidences; the bounds are the calibration's twentieths, where it is known, and the threshold.",
            buckets=_buckets(model),
            registry=registry,
        )
        self._seconds = Histogram(
            "sirc_request_seconds", "From the request's head to its answer.", buckets=_SECONDS, registry=registry
        )
        self.in_progress = Gauge("sirc_requests_in_progress", "Requests begun and not answered.", registry=registry)
        Gauge("sirc_threshold", "Accepted is a confidence of at least this.", registry=registry).set(
            model.threshold.value
        )
        promised = model.threshold.estimates.get("coverage")
        if promised is not None:
            text = "The share of the calibration's ID rows that is accepted."
            Gauge("sirc_calibration_acceptance", text, registry=registry).set(promised)
        for kind in KINDS:
            self._errors.labels(kind)

    def count_decisions(self, decision: OnnxDecision) -> None:
        """Count accepted and rejected images, and sort their confidences into the histogram."""
        accepted = int(decision.accepted.sum())
        self._accepted.inc(accepted)
        self._rejected.inc(len(decision.accepted) - accepted)
        for value in decision.confidence.tolist():
            # One NaN would make the histogram's sum NaN for good.
            if math.isfinite(value):
                self._confidence.observe(value)
            else:
                self._nonfinite.inc()

    def count_request(self, status: int, kind: str | None, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        if kind is not None:
            self._errors.labels(kind).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _buckets(model: OnnxModel) -> Sequence[float]:
    """Bounds of the histogram: the calibration's quantiles, or steps around the threshold; and the threshold."""
    quantiles = [float(value) for value in model.facts.get("quantiles") or ()]
    limit = model.threshold.value
    centre = limit if math.isfinite(limit) else 0.0
    steps = quantiles or [centre + sign * step for step in _STEPS for sign in (-1, 1)]
    return sorted({value for value in (*steps, centre) if math.isfinite(value)})
