"""The HTTP service over an exported graph: an image in, a decision out, with limits, health and counters.

```python
app = sirc.deploy.serve.make_app("model.onnx")   # run it with uvicorn, or `sirc serve model.onnx`
```

`POST /predict` takes an image as the body (`Content-Type: image/…`) or one or more as files of a form, and answers
`{"decisions": [{"label", "class", "confidence", "accepted"}, …], "spec", "threshold"}`, in the order of the files. A
request gets all of its decisions, or an error `{"error": text, "kind": word}` with a status: 400 malformed or empty,
408 too slow, 413 too large, 415 no image by its type, 422 no image by its bytes, 503 too many requests at once. JSON
has no infinities: a confidence that is no finite number is the string "inf", "-inf" or "nan".
`GET /health` and `/ready` tell whether the process and the graph answer, `/metrics` has the counters, `/` describes
what is served, and `/openapi.json` all of this for programs.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable

import sirc
from sirc._utils.files import PathLike
from sirc.deploy.onnx import OnnxModel

try:
    import PIL  # noqa: F401
    import python_multipart  # noqa: F401
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise ImportError(
        "serving needs fastapi, uvicorn, Pillow, python-multipart and prometheus-client: pip install 'sirc[serve]'"
    ) from error

from sirc.deploy.serve.service import Service
from sirc.deploy.serve.uploads import Limits

__all__ = ["make_app", "run"]

_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"image": {"type": "array", "items": _FILE}}}
_CONTENT = {"image/*": {"schema": _FILE}, "multipart/form-data": {"schema": _FORM}}
_BODY = {"requestBody": {"required": True, "content": _CONTENT}}


def make_app(
    onnx_path: PathLike,
    *,
    max_bytes: int = 10 << 20,
    max_images: int = 64,
    max_pixels: int = 50_000_000,
    max_body: int = 64 << 20,
    read_seconds: float = 30.0,
    concurrency: int = 2,
    max_held: int = 256 << 20,
    max_waiting: int = 256,
    threads: int = 0,
) -> FastAPI:
    """Make the service for a file that `export_onnx` wrote; no state is kept between requests.

    An image has at most `max_bytes` and `max_pixels`; a request at most `max_images`, four times `max_pixels` and, as a
    form, `max_body` bytes; it must arrive within `read_seconds`. `concurrency` requests are computed at once, and up to
    `max_waiting` more are read or wait. All requests together hold at most `max_held` bytes; one that would exceed it
    is answered with 503. `threads` are onnxruntime's own for each computation; 0 is one for each core.
    """
    limits = Limits(max_bytes, max_images, max_pixels, max_body, read_seconds)
    service = Service(OnnxModel(onnx_path, threads=threads), limits, concurrency, max_held, max_waiting)
    app = FastAPI(
        title="sirc",
        summary="A classifier that knows when to keep quiet.",
        version=sirc.__version__,
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service

    @app.post("/predict", openapi_extra=_BODY, summary="Decide about one image or several")
    async def predict(request: Request) -> Response:
        return await service.predict(request)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Whether the process is alive")
    async def health() -> Response:
        return JSONResponse({"alive": True})

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", summary="Whether the graph answers")
    async def ready() -> Response:
        is_ready = await service.is_ready()
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/metrics", summary="Counters for Prometheus")
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", summary="What is served")
    async def about() -> Response:
        return JSONResponse(service.about())

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        text = f"{error.detail}; there are POST /predict, GET /health, /ready, /metrics, /openapi.json and /"
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
    """Serve until stopped. `started` gets the address; with port 0 the system chooses the port."""
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("serving needs uvicorn: pip install 'sirc[serve]'") from error
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"'{host}' port {port} cannot be listened on: {reason}. Choose another.") from error
    logs = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    logs["handlers"]["access"]["stream"] = "ext://sys.stderr"  # stdout is for the address
    with listening:
        level = "warning" if quiet else "info"
        config = uvicorn.Config(
            app, log_config=logs, log_level=level, timeout_keep_alive=30, timeout_graceful_shutdown=30
        )
        name = f"[{host}]" if ":" in host else host
        started(f"http://{name}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])
