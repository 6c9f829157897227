"""Service: read, decide, count and answer requests."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import sirc
from sirc._utils.checks import check_positive
from sirc.deploy.onnx_model import OnnxDecision, OnnxModel
from sirc.deploy.serve.metrics import Metrics
from sirc.deploy.serve.uploads import FORMATS, Limits, Reader, RefusedError, Upload, busy, open_image
from sirc.deploy.threshold.text import as_plain

if TYPE_CHECKING:
    from PIL.Image import Image

_log = logging.getLogger("sirc.deploy.serve")
_BATCH = 16  # images that the graph sees at once
_READY_SECONDS = 5.0


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
        kind: str | None = None
        status = 200
        with self.metrics.in_progress.track_inprogress():
            try:
                answer = JSONResponse(self._as_json(await self._decide(request)))
            except RefusedError as error:
                status, kind = error.status, error.kind
                headers = {"Retry-After": "1"} if status == 503 else None
                answer = JSONResponse({"error": error.message, "kind": kind}, status, headers=headers)
            except Exception:  # the reason is for the log, not for the client
                _log.exception("a request failed")
                status, kind = 500, "internal"
                answer = JSONResponse(
                    {"error": "the request failed; the service's log tells why", "kind": kind}, status
                )
            finally:
                self._requests -= 1
        self.metrics.count_request(status, kind, time.monotonic() - began)
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
            batch.append(self._prepared(image, upload.name))
            if len(batch) == _BATCH or upload is uploads[-1]:
                parts.append(self.model(np.stack(batch)))
                batch = []
        return OnnxDecision(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _prepared(self, image: Image, name: str) -> npt.NDArray[np.float32]:
        pixels: npt.NDArray[np.float32] = self._prepare(image).numpy()
        if not self.model.fits(pixels):
            wanted = " × ".join(map(str, reversed(self.model.size)))
            text = f"{name} must have {wanted} pixels once prepared; it has {pixels.shape[2]} × {pixels.shape[1]}"
            raise RefusedError(422, "wrong_size", text)
        return pixels

    def _as_json(self, decision: OnnxDecision) -> dict[str, object]:
        rows = zip(*(column.tolist() for column in decision), strict=True)
        decisions = [
            {"label": label, "class": self.model.name_of(label), "confidence": as_plain(value), "accepted": accepted}
            for label, value, accepted in rows
        ]
        return {"decisions": decisions, "spec": self.model.spec, "threshold": as_plain(self.model.threshold.value)}

    async def is_ready(self) -> bool:
        """Tell whether the graph gives a decision in reasonable time; one probe runs at a time."""
        if self._probe is None or self._probe.done():
            self._probe = self._pool.submit(self.model, self.model.blank())
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
