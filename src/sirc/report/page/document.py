"""HTML file of a page, joined from its parts: it needs no network and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

# In the order in which they need each other.
MODULES: Final = (
    *("data.js", "mixture.js", "seeds.js", "state.js", "scene.js", "words.js", "dom.js", "controls.js", "tables.js"),
    *("plots.js", "curves.js", "sweeps.js", "map.js", "main.js"),
)
PLOTLY: Final = "vendor/plotly-cartesian.min.js"


def page(content: Mapping[str, object]) -> str:
    """Write the page for what `sirc.report.page.payload` gives."""
    script, library = _script(), _read(PLOTLY)
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": html.escape(str(content["title"])),
        "policy": html.escape(policy),
        "style": _read("page.css"),
        "library": library,
        "data": _json(content),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


def _json(content: object) -> str:
    """Write JSON that is inert inside HTML: no text in it can end the element that holds it."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _script() -> str:
    """Join the modules: in one script they see each other's names without importing them."""
    joined = "\n".join(_read(name) for name in MODULES)
    joined = re.sub(r"^import\b[^;]*;\n", "", joined, flags=re.MULTILINE)
    return re.sub(r"^export (?=const|function|class|async|let)", "", joined, flags=re.MULTILINE)


@cache
def _read(name: str) -> str:
    return files(__package__).joinpath(*name.split("/")).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Name a script in the page's policy, so that the browser runs this one and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
