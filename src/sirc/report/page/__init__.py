"""The page: one HTML file in which α, β, the recall and the mix of OOD sets can be dragged, exact at every setting."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final, final

from sirc._utils.checks import check_type
from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc.evaluation import Evaluation
from sirc.progress import SILENT, Progress
from sirc.report.page.payload import payload
from sirc.report.protocols import Run

__all__ = ["Run", "report"]

# Each after those that it needs.
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
    """Write the page of an evaluation, or of all runs of one or several models, and give its path.

    The page is one file that opens from disk. It holds, for each score, how many of ID✓, ID✗ and each OOD set are
    accepted at up to 512 thresholds: at those, risk, coverage and shares are exact for every α, β and mix of OOD sets,
    and areas are within 0.5% of `sirc.Ranking`'s. `notes` are lines under the title.

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


@final
@dataclass(frozen=True)
class _Single:
    """An evaluation on its own."""

    evaluation: Evaluation
    model: str = ""
    seed: int = 0


def _page(content: Mapping[str, object]) -> str:
    """Fill the page's template. Its policy lets it run its own scripts alone, and load nothing."""
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
    """Write JSON that is inert inside HTML: no text in it can end the element that holds it."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _script() -> str:
    """Join the modules: in one script they see each other's names without importing them."""
    joined = "\n".join(_read(name) for name in MODULES)
    joined = re.sub(r"^import\b[^;]*;\n", "", joined, flags=re.MULTILINE)
    return re.sub(r"^export (?=const|function|class|async|let)", "", joined, flags=re.MULTILINE)


def _read(name: str) -> str:
    return files(__package__).joinpath(*name.split("/")).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Name a script in the page's policy, so that the browser runs this one and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
