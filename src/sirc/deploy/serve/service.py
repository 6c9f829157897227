"""The service: reads requests, decides, answers, and counts for Prometheus."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, final

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

import sirc
from sirc.deploy.confidence_graph import LOWEST
from sirc.deploy.onnx import ROW, OnnxModel, OnnxRow
from sirc.deploy.serve.uploads import (
    BUSY,
    FORMATS,
    REQUEST_IMAGES,
    Limits,
    RefusedError,
    Upload,
    UploadReader,
    count_pixels,
    decode,
)
from sirc.deploy.serve.watch import Watch
from sirc.deploy.threshold.text import as_plain

T = TypeVar("T")
_log = logging.getLogger("sirc.deploy.serve")
_BATCH = 16  # most images in one call of the graph
_PIXEL_BYTES = 16  # most memory that decoding or scaling takes for a pixel: WebP needs this much
_PREPARED_BYTES = 24  # memory of a prepared pixel: three float32, in the image and again in the batch
_LIGHT = 1 << 25  # bytes of light work: an image of two million pixels, or a batch of smaller ones
_READY_SECONDS = 5.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:=+/@-]{1,128}")
KINDS = (
    *("no_image", "content_type", "too_large", "too_many", "too_many_pixels", "not_an_image", "damaged", "wrong_size"),
    *("malformed", "timeout", "disconnected", "busy", "late", "internal"),
)
"""Reasons why a request gets no decision."""
_STEPS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@final
class Service:
    """A graph with the threads, counters, monitor and limits that all its requests share."""

    def __init__(self, model: OnnxModel, limits: Limits, watch: Watch) -> None:
        self.model = model
        self.limits = limits
        self.watch = watch
        self.metrics = Metrics(model)
        self.metrics.registry.register(watch)
        self.turns = Turns(limits.concurrency, limits.max_memory)
        self._geometry, self._normalise = model.preprocess.geometry(), model.preprocess.normalise()
        self._reader = UploadReader(limits)
        self._waiting, self._numbers = 0, itertools.count(1)
        self._probing, self._answered = asyncio.Lock(), -math.inf

    async def predict(self, request: Request) -> Response:
        """Answer a request with decisions, or with an error."""
        name, kind = _name_of(request), None
        with self.metrics.in_progress.track_inprogress(), self.metrics.seconds.time():
            try:
                answer = JSONResponse(self._as_json(await self._answer(request, name)))
            except Exception as error:
                refused = RefusedError.because(error)
                answer, kind = refused.answer(), refused.kind
        answer.headers["X-Request-ID"] = name
        self.metrics.count_request(answer.status_code, kind)
        return answer

    async def _answer(self, request: Request, name: str) -> list[OnnxRow]:
        """Read a request and decide about it, unless its time is up or its client leaves first."""
        seconds = self.limits.answer_seconds
        if self._waiting >= self.limits.max_waiting:
            raise RefusedError(*BUSY)
        async with self._reader.uploads(request) as uploads:
            self._waiting += 1
            deciding = asyncio.create_task(self._decide(uploads, name))
            leaving = asyncio.ensure_future(request.receive())  # after the body, only a disconnect can come
            try:
                await asyncio.wait((deciding, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if deciding.done():
                    return deciding.result()
                if leaving.done():
                    raise ClientDisconnect
                raise RefusedError(503, "late", f"it was not answered within {seconds:g} s; try again in a moment")
            finally:
                leaving.cancel()
                if deciding.cancel():
                    await asyncio.wait((deciding,))
                self._waiting -= 1

    async def _decide(self, uploads: list[Upload], name: str) -> list[OnnxRow]:
        run = partial(self.turns.run, next(self._numbers))
        pixels = await run(count_pixels, uploads, self.model.preprocess, self.limits)
        decided: dict[int, OnnxRow] = {}
        left = threading.Event()
        try:
            # A batch is prepared and decided in one turn, so that a waiting request holds no prepared images.
            for batch, memory in _batches(pixels, self.model.preprocess.crop):
                rows = await run(self._decide_batch, [uploads[place] for place in batch], left, memory=memory)
                decided.update(zip(batch, rows, strict=True))
        finally:
            left.set()
        self._answered = time.monotonic()
        rows = [decided[place] for place in range(len(uploads))]
        # Counted on the one thread that answers, so that the monitor sees images in the order of the answers.
        self.metrics.count_decisions(rows)
        self.watch.take(rows, name)
        return rows

    def _decide_batch(self, uploads: list[Upload], left: threading.Event) -> list[OnnxRow]:
        """Decide about a few images; stop if nobody waits for them any more."""
        batch = []
        for upload in uploads:
            if left.is_set():
                raise ClientDisconnect
            batch.append(self._prepare(upload))
        return self.model.rows(np.stack(batch))

    def _prepare(self, upload: Upload) -> npt.NDArray[np.float32]:
        image = self._geometry(decode(upload))
        self.model.check_size(upload.name, image.height, image.width)
        return self._normalise(image).numpy()

    def _as_json(self, rows: Sequence[OnnxRow]) -> dict[str, object]:
        decisions = [as_plain(dict(zip(ROW, row, strict=True))) for row in rows]
        return {"decisions": decisions, "spec": self.model.spec, "threshold": as_plain(self.model.threshold.value)}

    async def is_ready(self) -> bool:
        """Whether the graph decided something in the last second, or can do so now."""
        blank = np.zeros((1, 3, *(side or 32 for side in self.model.size)), dtype=np.float32)
        try:
            async with asyncio.timeout(_READY_SECONDS), self._probing:
                if time.monotonic() - self._answered > 1:
                    await self.turns.run(0, self.model, blank)
                    self._answered = time.monotonic()
        except Exception:  # whatever it is, no request should come
            _log.exception("the graph does not answer")
            return False
        return True

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
            "limits": {**vars(self.limits), "max_request_pixels": REQUEST_IMAGES * self.limits.max_pixels},
        }


def _batches(pixels: Sequence[int], crop: int | None) -> Iterator[tuple[list[int], int]]:
    """Group images into batches, largest images first; give their indices and the memory that each batch takes.

    Images share a batch while it stays light; a heavy image is alone.
    """
    batch: list[int] = []
    memory = 0
    for place in np.argsort(-np.array(pixels), kind="stable").tolist():
        prepared = _PREPARED_BYTES * (crop**2 if crop else pixels[place])
        if batch and (len(batch) == _BATCH or memory + prepared > _LIGHT):
            yield batch, memory
            batch = []
        memory = memory + prepared if batch else pixels[place] * _PIXEL_BYTES + prepared
        batch.append(place)
    yield batch, memory


def _name_of(request: Request) -> str:
    """The client's ID of its request, or a random one."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


@final
class Turns:
    """Threads and memory that requests share; light work goes first and has an extra thread, so it never waits long."""

    def __init__(self, threads: int, memory: int) -> None:
        self._pool = ThreadPoolExecutor(threads + 1, "sirc-serve")
        self._threads, self._memory = threads, memory
        self.running: list[int] = []
        self.waiting: list[tuple[int, int]] = []
        self._changed = asyncio.Event()

    async def run(self, request: int, work: Callable[..., T], *args: object, memory: int = 0) -> T:
        """Run work in a thread when its turn comes, earlier requests first. Cancelled before that, it never runs."""
        turn = (memory, request)
        self.waiting.append(turn)
        try:
            while turn != min(self.waiting) or not self._has_room(memory):
                await self._changed.wait()
        finally:
            self.waiting.remove(turn)
            self._tell()
        self.running.append(memory)
        job = self._pool.submit(work, *args)
        try:
            return await (done := asyncio.wrap_future(job))
        finally:
            if job.done():  # told here, so that this request's next work queues before others start
                self._tell(memory)
            else:  # cancelled, but a thread cannot be stopped: it counts until it ends
                job.add_done_callback(lambda _: done.get_loop().call_soon_threadsafe(self._tell, memory))

    def _has_room(self, memory: int) -> bool:
        if memory <= _LIGHT:
            return len(self.running) <= self._threads
        taken = sum(self.running)
        return len(self.running) < self._threads and (not taken or taken + memory <= self._memory)

    def _tell(self, *ended: int) -> None:
        """Wake everything that waits: whatever ends, starts or leaves may make room for another."""
        for memory in ended:
            self.running.remove(memory)
        self._changed.set()
        self._changed = asyncio.Event()


@final
class Metrics:
    """The Prometheus metrics of one service, in their own registry."""

    def __init__(self, model: OnnxModel) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._requests = counter("sirc_requests", "Requests for decisions, by HTTP status.", ["status"])
        self._errors = counter("sirc_errors", "Requests without a decision, by reason.", ["kind"])
        self._accepted = counter("sirc_accepted", "Images accepted.")
        self._rejected = counter("sirc_rejected", "Images rejected.")
        self._nonfinite = counter("sirc_confidence_nonfinite", "Confidences that could not be computed.")
        text = "Confidences; the bounds are quantiles of the calibration, if it is known, and the threshold."
        self._confidence = Histogram("sirc_confidence", text, buckets=_buckets(model), registry=registry)
        text = "From the request's head to its answer."
        self.seconds = Histogram("sirc_request_seconds", text, buckets=_SECONDS, registry=registry)
        self.in_progress = gauge("sirc_requests_in_progress", "Requests begun and not answered.")
        gauge("sirc_threshold", "Images are accepted from this confidence on.").set(model.threshold.value)
        if (promised := model.threshold.estimates.get("coverage")) is not None:
            text = "The share of the calibration's ID rows that is accepted."
            gauge("sirc_calibration_acceptance", text).set(promised)
        for kind in KINDS:
            self._errors.labels(kind)

    def count_decisions(self, rows: Sequence[OnnxRow]) -> None:
        """Count accepted and rejected images, and sort their confidences into the histogram."""
        for row in rows:
            (self._accepted if row.accepted else self._rejected).inc()
            # One NaN would make the histogram's sum NaN for good, and one `LOWEST` would swamp it.
            if abs(row.confidence) < -LOWEST:
                self._confidence.observe(row.confidence)
            else:
                self._nonfinite.inc()

    def count_request(self, status: int, kind: str | None) -> None:
        """Count an answered request, and the kind of its error if it has one."""
        self._requests.labels(str(status)).inc()
        if kind is not None:
            self._errors.labels(kind).inc()


def _buckets(model: OnnxModel) -> Sequence[float]:
    """Bounds of the histogram: the calibration's quantiles, or steps around the threshold; and the threshold."""
    centre = model.threshold.value if math.isfinite(model.threshold.value) else 0.0
    steps = model.quantiles or [centre + sign * step for step in _STEPS for sign in (-1, 1)]
    return sorted({value for value in (*steps, centre) if math.isfinite(value)})
