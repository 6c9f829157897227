"""The application: the page's addresses as a FastAPI app."""

from __future__ import annotations

import asyncio
import ipaddress
import re

from sirc._utils.files import PathLike
from sirc._utils.imports import needing
from sirc.errors import ImageError

with needing("the page", "fastapi and uvicorn", "serve"):
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response
    from starlette.exceptions import HTTPException
    from starlette.middleware.base import RequestResponseEndpoint

from sirc.deploy.selective import SelectiveClassifier
from sirc.deploy.serve.pages import add_page_files, page_file, safe_headers
from sirc.deploy.serve.uploads import FORMATS, Limits, RefusedError, UploadReader
from sirc.deploy.tryout.explainer import Explainer
from sirc.deploy.tryout.neighbours import Neighbours

_HEADERS = {
    **safe_headers("'self' blob: data:"),
    "Cross-Origin-Resource-Policy": "same-origin",  # no other page shows the training images
    "Cache-Control": "no-store",
}
_MAX_BYTES = 32 << 20  # of an image: cameras write files larger than a service should accept


def make_app(
    guard: SelectiveClassifier,
    *,
    train: PathLike | None = None,
    outputs: PathLike | None = None,
    local: bool = True,
) -> FastAPI:
    """Make the page for a calibrated classifier that knows how to prepare images.

    With `train`, the folder of the training images, and `outputs`, the store of their outputs that
    `sirc.guard(…, path=…)` made, it shows the nearest ones. With `local` it only answers requests to this machine's own
    names, so that no website can read the images through the browser.
    """
    if (train is None) != (outputs is None):
        raise ValueError("nearest training images need both `train`, their folder, and `outputs`, their store")
    neighbours = None if train is None or outputs is None else Neighbours(guard, train, outputs)
    limits = Limits(max_bytes=_MAX_BYTES, max_images=1)
    explainer, reader, turn = Explainer(guard, neighbours, limits), UploadReader(limits), asyncio.Lock()
    app = FastAPI(title="sirc try", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def keep_safe(request: Request, go_on: RequestResponseEndpoint) -> Response:
        host = request.headers.get("host", "")
        name = re.sub(r":\d+$", "", host).strip("[]")
        if local and not is_own_name(name):
            text = (
                "this page is for the machine that it runs on; open it as http://127.0.0.1, or start it with `--host`"
            )
            response: Response = RefusedError(403, "host", text).answer()
        else:
            response = await go_on(request)
        response.headers.update(_HEADERS)
        return response

    @app.get("/")
    async def page() -> Response:
        return page_file(__package__, "page.html")

    add_page_files(app, __package__)

    @app.get("/guard")
    async def about() -> Response:
        return JSONResponse({**explainer.about(), "formats": FORMATS, "max_bytes": limits.max_bytes})

    @app.post("/decide")
    async def decide(request: Request) -> Response:
        try:
            async with reader.uploads(request) as uploads, turn:
                return JSONResponse(await asyncio.to_thread(explainer.explain, uploads[0]))
        except Exception as error:
            return RefusedError.because(error).answer()

    @app.get("/train/{number:int}")
    async def training_image(number: int) -> Response:
        try:
            if neighbours is None:
                raise IndexError("no training images are known")
            return Response(await asyncio.to_thread(neighbours.thumbnail, number), media_type="image/jpeg")
        except (IndexError, ImageError, OSError) as error:
            return RefusedError(404, "http", str(error)).answer()

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return RefusedError(error.status_code, "http", str(error.detail)).answer()

    return app


def is_own_name(host: str) -> bool:
    """Whether a host name always means this machine: localhost, or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
