"""The application: the service's addresses as a FastAPI app, and the server that runs it."""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable

import sirc
from sirc._utils.files import PathLike
from sirc._utils.imports import needing
from sirc._utils.text import closest, shorten
from sirc.deploy.onnx import OnnxModel

with needing("serving", "fastapi, uvicorn, Pillow, python-multipart and prometheus-client", "serve"):
    import python_multipart  # noqa: F401
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response
    from PIL import Image
    from prometheus_client import CONTENT_TYPE_LATEST, disable_created_metrics, generate_latest
    from starlette.exceptions import HTTPException

from sirc.deploy.serve.pages import add_page_files, page_file, safe_headers
from sirc.deploy.serve.service import Service
from sirc.deploy.serve.uploads import Limits
from sirc.deploy.serve.watch import Watch

_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"image": {"type": "array", "items": _FILE}}}
_CONTENT = {"image/*": {"schema": _FILE}, "multipart/form-data": {"schema": _FORM}}
_BODY = {"requestBody": {"required": True, "content": _CONTENT}}
_PAGE_HEADERS = {**safe_headers("data:"), "Cache-Control": "no-cache", "Vary": "Accept"}


def make_app(
    onnx_path: PathLike,
    *,
    state: PathLike | None = None,
    log: PathLike | None = None,
    delta: float = 0.05,
    threads: int = 0,
    **limits: float,
) -> FastAPI:
    """Make the service for a file that `export_onnx` wrote.

    `state` is a file that saves the monitor's state, so that a restart continues it; only one service may use it at a
    time. `log` is a folder, such as `decisions.parquet`, that stores the decisions, but no images. Both are written
    every few seconds while the service runs. `delta` bounds the probability that the monitor ever raises a false alarm.
    onnxruntime uses `threads` threads for a batch; 0 means one for each core. `limits` are the fields of `Limits`.
    """
    known = vars(Limits())
    for name in limits:
        if name not in known:
            raise ValueError(f"a limit must be one of {', '.join(known)}; got {shorten(name)}.{closest(name, known)}")
    checked = Limits(**limits)  # type: ignore[arg-type]
    model = OnnxModel(onnx_path, threads=threads)
    watch = Watch(model, state, log, delta)
    service = Service(model, checked, watch)
    # Without FastAPI's own pages, which load scripts from elsewhere.
    app = FastAPI(
        title="sirc",
        summary="A classifier that rejects inputs it may be wrong about.",
        version=sirc.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=watch.running,
    )
    app.state.service = service
    app.post("/predict", openapi_extra=_BODY, summary="Decide about one image or several")(service.predict)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Whether the process is alive")
    async def health() -> Response:
        return JSONResponse({"alive": True})

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", summary="Whether the graph answers")
    async def ready() -> Response:
        is_ready = await service.is_ready()
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/monitor", summary="Whether images are accepted at the promised rate")
    async def monitor() -> Response:
        return JSONResponse(watch.about())

    @app.get("/metrics", summary="Counters and the monitor's gauges for Prometheus")
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", summary="What is served; for browsers, a page with the monitor's charts")
    async def about(request: Request) -> Response:
        first_choice = request.headers.get("accept", "").partition(",")[0]
        if first_choice.strip().lower() == "text/html":  # as browsers ask
            return page_file(__package__, "page.html", _PAGE_HEADERS)
        return JSONResponse(service.about(), headers={"Vary": "Accept"})

    add_page_files(app, __package__, _PAGE_HEADERS)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        text = f"{error.detail}; there are POST /predict, GET /health, /ready, /metrics, /monitor, /openapi.json and /"
        return JSONResponse({"error": text, "kind": "http"}, error.status_code, headers=error.headers)

    return app


def run(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    quiet: bool = False,
    started: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve until stopped. `started` is called with the address; with port 0 the system chooses the port."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OSError(f"'{host}' port {port} cannot be listened on: {error.strerror}. Choose another.") from error
    # Memory blocks of Pillow's default size, 16 MiB, would stay in each thread's heap after they are freed.
    Image.core.set_block_size(64 << 20)  # type: ignore[attr-defined]
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they are half of all series
    logs = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    logs["handlers"]["access"]["stream"] = "ext://sys.stderr"  # stdout is for the address
    level = "warning" if quiet else "info"
    config = uvicorn.Config(app, log_config=logs, log_level=level, timeout_keep_alive=30, timeout_graceful_shutdown=30)
    with listener:
        name = f"[{host}]" if ":" in host else host
        started(f"http://{name}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])
