"""What happens to a request for decisions: it is read, waits, is computed, counted and answered."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import sirc
from sirc._utils.checks import check_positive
from sirc.deploy.onnx_model import Decided, Deployed
from sirc.deploy.serve.body import Limits, Upload, busy, uploads
from sirc.deploy.serve.budget import Budget
from sirc.deploy.serve.images import FORMATS, RefusedError, open_image
from sirc.deploy.serve.metrics import Metrics
from sirc.deploy.threshold.text import as_plain

_log = logging.getLogger("sirc.deploy.serve")
_ROWS = 16  # images that the graph sees at once
_READY_SECONDS = 5.0


@final
class Service:
    """The graph, its threads, its counters, and the room that requests share."""

    def __init__(self, model: Deployed, limits: Limits, concurrency: int, max_held: int, max_waiting: int) -> None:
        self.model = model
        self.limits = limits
        self.metrics = Metrics(model)
        self._prepare = model.preprocess.test()
        self._pool = ThreadPoolExecutor(check_positive("concurrency", concurrency), "sirc-serve")
        self._budget = Budget(check_positive("max_held", max_held))
        self._room = concurrency + check_positive("max_waiting", max_waiting)
        self._begun = 0
        self._probe: Future[Decided] | None = None

    async def predict(self, request: Request) -> Response:
        """Answer a request: with decisions, or with what is wrong."""
        began = time.monotonic()
        self._begun += 1
        kind: str | None = None
        status = 200
        with self.metrics.waiting.track_inprogress():
            try:
                found = await self._decide(request)
                answer = JSONResponse(self._words(found))
            except RefusedError as error:
                status, kind = error.status, error.kind
                later = {"Retry-After": "1"} if status == 503 else None
                answer = JSONResponse({"error": error.message, "kind": kind}, status, headers=later)
            except Exception:  # the client learns that it failed; how, the log tells
                _log.exception("a request failed")
                status, kind = 500, "internal"
                answer = JSONResponse(
                    {"error": "the request failed; the service's log tells why", "kind": kind}, status
                )
            finally:
                self._begun -= 1
        self.metrics.answered(status, kind, time.monotonic() - began)
        return answer

    async def _decide(self, request: Request) -> Decided:
        if self._begun > self._room:
            raise busy()
        # A body is read before it waits for a thread: a client that is slow to send keeps nobody else waiting.
        with self._budget.share() as share:
            async with uploads(request, self.limits, share) as images:
                found = await asyncio.get_running_loop().run_in_executor(self._pool, self._compute, images)
        self.metrics.decided(found)
        return found

    def _compute(self, images: list[Upload]) -> Decided:
        parts = []
        left = _Left(self.limits.max_request_pixels)
        for start in range(0, len(images), _ROWS):
            some = images[start : start + _ROWS]
            parts.append(self.model(np.stack([self._prepared(upload, left) for upload in some])))
        return Decided(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _prepared(self, upload: Upload, left: _Left) -> Any:
        image = open_image(upload.file, upload.name, self.model.preprocess, self.limits.max_pixels, left.pixels)
        left.pixels -= image.width * image.height
        made = self._prepare(image).numpy()
        if not self.model.fits(made):
            wanted = " × ".join(map(str, reversed(self.model.size)))
            text = f"{upload.name} must have {wanted} pixels once prepared; it has {made.shape[2]} × {made.shape[1]}"
            raise RefusedError(422, "wrong_size", text)
        return made

    def _words(self, found: Decided) -> dict[str, object]:
        rows = zip(found.label.tolist(), found.confidence.tolist(), found.accepted.tolist(), strict=True)
        decisions = [
            {"label": label, "class": self.model.name_of(label), "confidence": as_plain(value), "accepted": accepted}
            for label, value, accepted in rows
        ]
        return {"decisions": decisions, "spec": self.model.spec, "threshold": as_plain(self.model.threshold.value)}

    async def answers(self) -> bool:
        """Whether the graph gives a decision in reasonable time; one question is open at a time."""
        if self._probe is None or self._probe.done():
            self._probe = self._pool.submit(self.model, self.model.blank())
        try:
            async with asyncio.timeout(_READY_SECONDS):
                found = await asyncio.shield(asyncio.wrap_future(self._probe))
        except TimeoutError:
            return False
        except Exception:
            _log.exception("the graph does not answer")
            return False
        return len(found.label) == 1

    def about(self) -> dict[str, object]:
        """What is served, for the curious."""
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
@dataclass
class _Left:
    """What a request may still ask for."""

    pixels: int
