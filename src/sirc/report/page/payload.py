"""Data of a page: accepted numbers of each group at some thresholds, packed as text."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

import sirc
from sirc._utils.arrays import Floats
from sirc._utils.text import quoted
from sirc.evaluation import WRONG, Evaluation
from sirc.metrics import all_metrics, derivatives
from sirc.progress import SILENT, Progress
from sirc.report.figures.style import Look, array, method_look
from sirc.report.names import escape, metric_name, score_family, score_name
from sirc.report.page.grid import LEVELS, POINTS, Grid, Ints, make_grid
from sirc.report.protocols import Run

LIMIT: Final = 1_800_000  # bytes of packed numbers; with its own text, a page has less than 2 MB
_RECOMPUTED: Final = ("auroc", "fpr", "aurr", "risk", "aurc")  # metrics that mixture.js computes at any setting
_INPUTS: Final = 500  # of each group at most, from which the page estimates noise
_FEWEST: Final = 256  # the least number of thresholds, however many scores and runs there are

_SYMBOLS: Final = {
    "o": "circle", "s": "square", "D": "diamond", "P": "cross", "*": "star", "X": "x", "p": "pentagon", "h": "hexagon",
    "^": "triangle-up", "v": "triangle-down", "<": "triangle-left", ">": "triangle-right", "d": "diamond-tall",
}  # fmt: skip


def payload(runs: Sequence[Run], title: str, *, progress: Progress = SILENT) -> dict[str, object]:
    """Everything that the page shows, as JSON values."""
    models: dict[str, list[Run]] = {}
    for run in runs:
        models.setdefault(run.model, []).append(run)
    for same in models.values():
        _check_alike(same)
    first = runs[0].evaluation
    levels = sorted({*LEVELS, first.recall} - {0.0})
    grids: dict[int, list[Grid]] = {id(run): [] for run in runs}
    with progress.task("page", sum(len(run.evaluation.scores) for run in runs), unit="scores") as task:
        for run in runs:
            for score in run.evaluation.scores:
                grids[id(run)].append(make_grid(_groups(run.evaluation, score), levels, POINTS))
                task.advance()
    packed, points = _pack_within_limit(grids)
    for (alone,) in (same for same in models.values() if len(same) == 1):  # several runs have their spread as noise
        ev, fewer = alone.evaluation, [grid.fewer(points) for grid in grids[id(alone)]]
        firsts = _first_accepted([_groups(ev, score) for score in ev.scores], fewer)
        packed[id(alone)] = [{**entry, "firsts": one} for entry, one in zip(packed[id(alone)], firsts, strict=True)]
    return {
        "version": sirc.__version__,
        "title": escape(title, "text"),
        "levels": levels,
        "start": {
            "alpha": float(first.alpha[0]) if first.ood else 1.0,
            "beta": float(first.beta[0]),
            "recall": first.recall or levels[0],
            "pool": first.pool,
            "baseline": "msp" if "msp" in first.scores else first.scores[0],
        },
        "points": points,
        "inputs": _INPUTS,
        "metrics": {
            metric.name: {
                "title": metric_name(metric.label(first.recall)),
                "higher": not metric.lower_is_better,
                "unit": metric.unit,
                "recomputed": metric.name in _RECOMPUTED,
            }
            for metric in all_metrics()
            if metric.per_negative
        },
        "ofId": {
            metric.name: {"title": metric_name(metric.label(first.recall)), "unit": metric.unit}
            for metric in all_metrics()
            if not metric.per_negative
        },
        "models": [_model(name, same, packed, levels) for name, same in models.items()],
    }


def _model(
    name: str, runs: Sequence[Run], packed: Mapping[int, list[dict[str, object]]], levels: Sequence[float]
) -> dict[str, object]:
    evaluation = runs[0].evaluation
    sets, right = list(evaluation.ood), int(evaluation.correct.sum())
    return {
        "name": escape(name, "text"),
        "scores": [
            {"spec": score, "name": score_name(score), "family": score_family(score), **_drawn(method_look(score))}
            for score in evaluation.scores
        ],
        "sets": [escape(name, "text") for name in sets],
        "groups": {
            # The page itself has mixes of these two names.
            escape(f"group {group}" if group in ("all", "own") else group, "text"): [
                sets.index(member) for member in members
            ]
            for group, members in evaluation.groups.items()
        },
        # How far around each recall the page takes the slope of a curve.
        "windows": [float(f"{derivatives.window(x, right):.3g}") for x in levels if len(runs) == 1],
        "runs": [
            {
                "seed": int(run.seed),
                "sizes": [len(group) for group in _groups(run.evaluation, evaluation.scores[0])],
                "scores": packed[id(run)],
                "values": _values(run.evaluation),
                "ofId": _id_values(run.evaluation),
            }
            for run in runs
        ],
    }


def _values(evaluation: Evaluation) -> dict[str, list[list[float | None]]]:
    """Values that the page cannot recompute, by metric and score: of ID✗ and of each OOD set."""
    labels = {m.name: m.label(evaluation.recall) for m in all_metrics() if m.per_negative and m.name not in _RECOMPUTED}
    table = evaluation.table[evaluation.table["metric"].isin(labels.values())]
    # The page opens with the first α and β; ID✗ alone is at α = 1.
    at_start = table["alpha"].isna() | (table["alpha"] == float(evaluation.alpha[0])) | (table["negative"] == WRONG)
    at_start &= table["beta"].isna() | (table["beta"] == float(evaluation.beta[0]))
    values = table[at_start].set_index(["metric", "score", "negative"])["value"].to_dict()
    negatives = [WRONG, *evaluation.ood]
    return {
        name: [[_short(values.get((label, score, n))) for n in negatives] for score in evaluation.scores]
        for name, label in labels.items()
    }


def _id_values(evaluation: Evaluation) -> dict[str, float | None]:
    """The metrics of ID data, which are the same for every score."""
    values = evaluation.table.drop_duplicates("metric").set_index("metric")["value"]
    metrics = (metric for metric in all_metrics() if not metric.per_negative)
    return {metric.name: _short(values.get(metric.label(evaluation.recall))) for metric in metrics}


def _short(value: float | None) -> float | None:
    """Round to six digits, to keep the page small; None if missing or not finite."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _check_alike(runs: Sequence[Run]) -> None:
    """Require that runs of one model differ only in the seed."""
    model, seeds = runs[0].model, [run.seed for run in runs]
    if len(set(seeds)) < len(seeds):
        got = ", ".join(map(str, seeds))
        raise ValueError(
            f"runs of one model must have different seeds; {quoted(model)} has {got}. Name the models apart."
        )
    if len({str((run.evaluation.scores, list(run.evaluation.ood), run.evaluation.groups)) for run in runs}) > 1:
        raise ValueError(
            f"runs of one model must have the same scores, OOD sets and groups; seeds {', '.join(map(str, seeds))} of "
            f"{quoted(model)} differ. Evaluate them alike, or give the models different names."
        )


def _groups(evaluation: Evaluation, score: str) -> list[Floats]:
    """The confidences of ID✓, ID✗ and each OOD set."""
    right, wrong, sets = evaluation._groups(score, evaluation._usual_negative)
    return [array(values) for values in (right, wrong, *sets.values())]


def _drawn(look: Look) -> dict[str, str]:
    """The look of a score in plotly's terms."""
    dash = "solid" if isinstance(look.dash, str) else ",".join(f"{2 * length:g}px" for length in look.dash[1])
    return {"colour": look.colour, "dash": dash, "symbol": _SYMBOLS[look.marker]}


def _pack_within_limit(grids: Mapping[int, Sequence[Grid]]) -> tuple[dict[int, list[dict[str, object]]], int]:
    """Pack the grids of each run with as many points as `LIMIT` allows, and give that number too."""
    points = POINTS
    while True:
        packed = {key: [_pack(grid.fewer(points)) for grid in some] for key, some in grids.items()}
        length = sum(len(str(text)) for entries in packed.values() for entry in entries for text in entry.values())
        if length <= LIMIT or points == _FEWEST:
            return packed, points
        points = max(_FEWEST, int(points * 0.95 * LIMIT / length))


def _pack(grid: Grid) -> dict[str, object]:
    """Pack thresholds as float64; ranks and counts as differences, most of which need one byte."""
    rows = np.vstack([grid.ranks, grid.counts])
    growth = np.diff(rows, axis=1, prepend=0).reshape(-1)
    return {
        "size": len(grid.ranks),
        "thresholds": base64.b64encode(grid.thresholds.astype("<f8").tobytes()).decode(),
        "counts": base64.b64encode(_varints(growth)).decode(),
    }


def _varints(values: Ints) -> bytes:
    """Encode numbers in groups of seven bits, lowest first; the high bit says that another follows."""
    length = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
    groups = values[:, None] >> (7 * np.arange(length)) & 0x7F
    more = (values[:, None] >> (7 * np.arange(1, length + 1))) > 0
    used = np.concatenate([np.ones((len(values), 1), dtype=bool), more[:, :-1]], axis=1)
    coded: npt.NDArray[np.uint8] = (groups | np.where(more, 0x80, 0)).astype(np.uint8)
    return bytes(coded[used])


def _first_accepted(groups: Sequence[Sequence[Floats]], grids: Sequence[Grid]) -> list[str]:
    """For each score, the grid points at which some inputs of each group are first accepted, as packed text.

    `groups` has each score's confidences of ID✓, ID✗ and each OOD set. The inputs are the same for all scores.
    """
    rng = np.random.default_rng(0)
    chosen = [np.sort(rng.permutation(len(values))[:_INPUTS]) for values in groups[0]]
    packed = []
    for some, grid in zip(groups, grids, strict=True):
        inputs = np.concatenate([values[rows] for values, rows in zip(some, chosen, strict=True)])
        # At point 0 of a page nothing is accepted.
        points = np.searchsorted(-grid.thresholds, -inputs, side="left") + 1
        packed.append(base64.b64encode(points.astype("<u2").tobytes()).decode())
    return packed
