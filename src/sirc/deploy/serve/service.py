"""Service: read, decide, count and answer requests; its Prometheus metrics show refusals and drift."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import final

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import sirc
from sirc._utils.checks import check_positive
from sirc.deploy.onnx import OnnxDecision, OnnxModel
from sirc.deploy.selective import LOWEST
from sirc.deploy.serve.uploads import FORMATS, Limits, Reader, RefusedError, Upload, busy, open_image
from sirc.deploy.threshold.text import as_plain
from sirc.errors import ImageError

_log = logging.getLogger("sirc.deploy.serve")
_BATCH = 16  # images that the graph sees at once
_READY_SECONDS = 5.0
KINDS = (
    *("no_image", "content_type", "too_large", "too_many", "too_many_pixels", "not_an_image", "damaged", "wrong_size"),
    *("malformed", "timeout", "disconnected", "busy", "internal"),
)
"""Reasons why a request gets no decision."""
_STEPS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@final
class Service:
    """The graph, its threads, its counters, and the limits that requests share."""

    def __init__(self, model: OnnxModel, limits: Limits, concurrency: int, max_held: int, max_waiting: int) -> None:
        self.model = model
        self.limits = limits
        self.metrics = Metrics(model)
        self._prepare = model.preprocess.test()
        self._pool = ThreadPoolExecutor(check_positive("concurrency", concurrency), "sirc-serve")
        self._reader = Reader(limits, max_held)
        self._max_requests = concurrency + check_positive("max_waiting", max_waiting)
        self._requests = 0
        self._probe: Future[OnnxDecision] | None = None

    async def predict(self, request: Request) -> Response:
        """Answer a request with decisions, or with what is wrong."""
        began = time.monotonic()
        self._requests += 1
        with self.metrics.in_progress.track_inprogress():
            refused = None
            try:
                answer = JSONResponse(self._as_json(await self._decide(request)))
            except RefusedError as error:
                refused = error
            except Exception:  # the reason is for the log, not for the client
                _log.exception("a request failed")
                refused = RefusedError(500, "internal", "the request failed; the service's log tells why")
            finally:
                self._requests -= 1
            if refused is not None:
                headers = {"Retry-After": "1"} if refused.status == 503 else None
                content = {"error": refused.message, "kind": refused.kind}
                answer = JSONResponse(content, refused.status, headers=headers)
        self.metrics.count_request(answer.status_code, refused and refused.kind, time.monotonic() - began)
        return answer

    async def _decide(self, request: Request) -> OnnxDecision:
        if self._requests > self._max_requests:
            raise busy()
        # The body is read before a thread is taken, so that a slow client keeps nobody else waiting.
        async with self._reader.uploads(request) as uploads:
            decision = await asyncio.get_running_loop().run_in_executor(self._pool, self._compute, uploads)
        self.metrics.count_decisions(decision)
        return decision

    def _compute(self, uploads: list[Upload]) -> OnnxDecision:
        parts, batch = [], []
        pixels_left = self.limits.max_request_pixels
        for upload in uploads:
            image = open_image(upload, self.model.preprocess, self.limits.max_pixels, pixels_left)
            pixels_left -= image.width * image.height
            batch.append(self._prepare(image).numpy())
            try:
                self.model.check_size(upload.name, batch[-1])
            except ImageError as error:
                raise RefusedError(422, "wrong_size", str(error)) from error
            if len(batch) == _BATCH or upload is uploads[-1]:
                parts.append(self.model(np.stack(batch)))
                batch = []
        return OnnxDecision(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _as_json(self, decision: OnnxDecision) -> dict[str, object]:
        classes = self.model.classes
        rows = zip(*(column.tolist() for column in decision), strict=True)
        decisions = [
            {"label": label, "class": classes and classes[label], "confidence": as_plain(value), "accepted": accepted}
            for label, value, accepted in rows
        ]
        return {"decisions": decisions, "spec": self.model.spec, "threshold": as_plain(self.model.threshold.value)}

    async def is_ready(self) -> bool:
        """Tell whether the graph gives a decision in reasonable time; one probe runs at a time."""
        if self._probe is None or self._probe.done():
            blank = np.zeros((1, 3, *(side or 32 for side in self.model.size)), dtype=np.float32)
            self._probe = self._pool.submit(self.model, blank)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                decision = await asyncio.shield(asyncio.wrap_future(self._probe))
        except TimeoutError:
            return False
        except Exception:
            _log.exception("the graph does not answer")
            return False
        return len(decision.label) == 1

    def about(self) -> dict[str, object]:
        """The score, threshold, classes, preprocessing and limits of the service."""
        threshold, facts = self.model.threshold, self.model.facts
        height, width = self.model.size
        return {
            "service": f"sirc {sirc.__version__}",
            "spec": self.model.spec,
            "threshold": as_plain(threshold.value),
            "guarantee": threshold.guarantee,
            "calibration": threshold.to_dict(),
            "classes": self.model.classes,
            "num_classes": facts.get("num_classes"),
            "model": facts.get("model"),
            "input": {"height": height, "width": width, "formats": FORMATS, "preprocess": facts["preprocess"]},
            "limits": {
                name: getattr(self.limits, name)
                for name in ("max_bytes", "max_images", "max_pixels", "max_request_pixels", "max_body")
            },
        }


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

    def __init__(self, model: OnnxModel) -> None:
        self.registry = registry = _Registry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._requests = counter("sirc_requests", "Requests for decisions, by HTTP status.", ["status"])
        self._errors = counter("sirc_errors", "Requests without a decision, by reason.", ["kind"])
        self._accepted = counter("sirc_accepted", "Images accepted.")
        self._rejected = counter("sirc_rejected", "Images rejected.")
        self._nonfinite = counter("sirc_confidence_nonfinite", "Confidences that could not be computed.")
        text = "Confidences; the bounds are the calibration's twentieths, where it is known, and the threshold."
        self._confidence = Histogram("sirc_confidence", text, buckets=_buckets(model), registry=registry)
        text = "From the request's head to its answer."
        self._seconds = Histogram("sirc_request_seconds", text, buckets=_SECONDS, registry=registry)
        self.in_progress = gauge("sirc_requests_in_progress", "Requests begun and not answered.")
        gauge("sirc_threshold", "Accepted is a confidence of at least this.").set(model.threshold.value)
        promised = model.threshold.estimates.get("coverage")
        if promised is not None:
            text = "The share of the calibration's ID rows that is accepted."
            gauge("sirc_calibration_acceptance", text).set(promised)
        for kind in KINDS:
            self._errors.labels(kind)

    def count_decisions(self, decision: OnnxDecision) -> None:
        """Count accepted and rejected images, and sort their confidences into the histogram."""
        accepted = int(decision.accepted.sum())
        self._accepted.inc(accepted)
        self._rejected.inc(len(decision.accepted) - accepted)
        for value in decision.confidence.tolist():
            # One NaN would make the histogram's sum NaN for good, and one `LOWEST` would be all of it.
            if abs(value) < -LOWEST:
                self._confidence.observe(value)
            else:
                self._nonfinite.inc()

    def count_request(self, status: int, kind: str | None, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        if kind is not None:
            self._errors.labels(kind).inc()


def _buckets(model: OnnxModel) -> Sequence[float]:
    """Bounds of the histogram: the calibration's quantiles, or steps around the threshold; and the threshold."""
    quantiles = [float(value) for value in model.facts.get("quantiles") or ()]
    limit = model.threshold.value
    centre = limit if math.isfinite(limit) else 0.0
    steps = quantiles or [centre + sign * step for step in _STEPS for sign in (-1, 1)]
    return sorted({value for value in (*steps, centre) if math.isfinite(value)})
