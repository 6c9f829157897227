"""Pages of the services: their files, and headers that stop them from loading anything from other servers."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.requests import Request

_SHARED = {"page.css": ("sirc._utils", "colours.css"), "page.js": (__package__, "drawing.js")}
_TYPES = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}


def safe_headers(images: str) -> dict[str, str]:
    """Headers that limit a page to its own script and its own server; `images` lists the allowed image sources."""
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src {images}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def page_file(package: str, name: str, headers: dict[str, str] | None = None) -> Response:
    """Answer with a file of a package's page. What all pages share comes first in its style and its script."""
    shared = [_SHARED[name]] if name in _SHARED else []
    data = b"".join(files(place).joinpath(part).read_bytes() for place, part in [*shared, (package, name)])
    return Response(data, media_type=_TYPES[name], headers=headers)


def add_page_files(app: FastAPI, package: str, headers: dict[str, str] | None = None) -> None:
    """Add routes for the style and the script of a page."""

    async def file(request: Request) -> Response:
        return page_file(package, request.url.path.rpartition("/")[2], headers)

    for name in ("page.css", "page.js"):
        app.add_route(f"/{name}", file, include_in_schema=False)
