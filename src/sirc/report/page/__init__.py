"""The page: one HTML file that follows α, β, the recall and the mix of OOD sets as they are dragged."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

from sirc._utils.checks import check_type
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc.evaluation import Evaluation
from sirc.progress import SILENT, Progress
from sirc.report.page.payload import payload
from sirc.report.protocols import Run

__all__ = ["Run", "report"]

# Each comes after the modules that it imports.
MODULES: Final = (
    "data.js", "mixture.js", "noise.js", "seeds.js", "state.js", "scene.js", "words.js", "dom.js", "controls.js",
    "tables.js", "plots.js", "curves.js", "sweeps.js", "map.js", "main.js",
)  # fmt: skip
PLOTLY: Final = "vendor/plotly-cartesian.min.js"


def report(
    runs: Evaluation | Sequence[Run],
    path: PathLike,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Path:
    """Write the page of an evaluation, or of all runs of one or several models, and return its path.

    The page is one file that opens from disk. For each score it has the numbers of ID✓, ID✗ and each OOD set accepted
    at up to 512 thresholds. Risk, coverage and shares are exact there for every α, β and mix of OOD sets; areas are
    within 0.5% of `sirc.Ranking`'s. `notes` are lines under the title.

    Example:
        >>> import tempfile, sirc
        >>> from sirc.report.page import report
        >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.4], [True, True, False])}, ood={"far": {"msp": [0.3, 0.85]}})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = report(ev, f"{folder}/report.html", title="A network")
        ...     print(page.name, "<title>A network</title>" in page.read_text(encoding="utf-8"))
        report.html True
    """
    refuse_existing(path, overwrite)
    what = "an evaluation, or a list of runs such as `sirc.experiment.load_runs` gives"
    check_type("runs", runs, Evaluation | Iterable, what)
    shown: Sequence[Run] = [_Single(runs)] if isinstance(runs, Evaluation) else list(runs)
    if not shown:
        raise ValueError("a page must have at least one run to show; got none")
    for run in shown:
        if not isinstance(getattr(run, "evaluation", None), Evaluation):
            raise ValueError(f"`runs` must be {what}; got {type(run).__name__}")
    models = dict.fromkeys(run.model for run in shown if run.model)
    content = payload(shown, title or ", ".join(models) or "Which score to deploy", progress=progress)
    text = _page({**content, "notes": [notes] if isinstance(notes, str) else list(notes)})
    atomic_write(path, lambda file: file.write(text.encode()))
    return Path(path)


class _Single(NamedTuple):
    """An evaluation as the only run of a model without a name."""

    evaluation: Evaluation
    model: str = ""
    seed: int = 0


def _page(content: Mapping[str, object]) -> str:
    """Fill the page's template. Its content security policy allows only its own scripts, and no loading."""
    script, library = _script(), _read(PLOTLY)
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": html.escape(str(content["title"])),
        "policy": html.escape(policy),
        "style": files("sirc._utils").joinpath("colours.css").read_text(encoding="utf-8") + _read("page.css"),
        "library": library,
        "data": _json(content),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


def _json(content: object) -> str:
    """Write JSON that is safe inside HTML: no text in it can close the element around it."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _script() -> str:
    """Join the modules into one script, without their imports and exports."""
    joined = "\n".join(_read(name) for name in MODULES)
    joined = re.sub(r"^import\b[^;]*;\n", "", joined, flags=re.MULTILINE)
    return re.sub(r"^export (?=const|function|class|async|let)", "", joined, flags=re.MULTILINE)


def _read(name: str) -> str:
    return files(__package__).joinpath(*name.split("/")).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """The hash of a script for the page's policy: the browser runs no script without one."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
