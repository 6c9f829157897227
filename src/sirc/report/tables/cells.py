"""Cells of a table: mean and 2 std of results over seeds, and the best marked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sirc._utils.text import quoted, shorten
from sirc.evaluation import COLUMNS, MEAN, POOLED, WRONG, as_names
from sirc.metrics import find_metric, lower_is_better

_KEYS = ["model", *COLUMNS[:-1]]
_GROUPS = ("Close", "Far")
_METRICS_HINT = (
    " One of your own is known once its module is imported (`--import MODULE`); those of ID data stand beside each "
    "model's name. Results are for one recall, which is 95% for commands."
)
_DIGITS = 12  # decimals: means that agree in these only differ by rounding, and share a rank


def summarise(results: pd.DataFrame) -> pd.DataFrame:
    """Summarise each value over the seeds of its model: `mean`, `two_std` (NaN for one seed), `runs`.

    `low` and `high` are the intervals of models with one seed, if results have them, or else NaN. A value that is NaN
    or missing for some of a model's seeds has no mean, because means over different seeds must not be compared.
    """
    columns = list(map(str, results.columns)) if isinstance(results, pd.DataFrame) else [type(results).__name__]
    combined = {"mean", "std", "runs"} <= set(columns)
    if not {*COLUMNS[:-1], *([] if combined else ["value"])} <= set(columns):
        needed, got = ", ".join(COLUMNS), shorten(", ".join(columns))
        raise ValueError(f"`results` must be a table with model, seed, {needed}, or of `combine`; got {got}.")
    if results.empty:
        raise ValueError("`results` must have at least one row; got none.")
    frame = pd.DataFrame({"model": "", "seed": 0}, index=results.index).assign(**results)
    # A model without a name comes back from CSV as NaN.
    frame["model"] = frame["model"].astype(object).where(frame["model"].notna(), "").astype(str)
    if combined:
        frame = frame.assign(two_std=2 * frame["std"])
        _refuse_twice(frame, _KEYS)
        return frame[[*_KEYS, "mean", "two_std", "runs"]].assign(low=np.nan, high=np.nan).reset_index(drop=True)
    _refuse_twice(frame, [*_KEYS, "seed"])
    groups = frame.groupby(_KEYS, sort=False, dropna=False)
    summary: pd.DataFrame = groups["value"].agg(mean="mean", std="std", runs="count").reset_index()
    for end in ("low", "high"):
        of_one = groups[end].first().to_numpy() if end in columns else np.nan
        summary[end] = np.where(summary["runs"] == 1, of_one, np.nan)
    whole = summary["runs"] == summary["model"].map(frame.groupby("model")["seed"].nunique())
    summary["mean"] = summary["mean"].where(whole)
    summary["two_std"] = (2 * summary["std"]).where(whole)
    return summary[[*_KEYS, "mean", "two_std", "runs", "low", "high"]]


def id_means(summary: pd.DataFrame) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and 2 std of the metrics of ID data, such as the error, by model; they are the same for every score."""
    by_model: dict[str, dict[str, tuple[float, float]]] = {str(model): {} for model in summary["model"].unique()}
    rows = summary[summary["metric"].map(_is_of_id) & summary["mean"].notna()].drop_duplicates(["model", "metric"])
    for model, metric, mean, two_std in rows[["model", "metric", "mean", "two_std"]].itertuples(index=False):
        by_model[model][metric] = float(mean), float(two_std)
    return by_model


def choose(
    summary: pd.DataFrame,
    metrics: Sequence[str],
    negatives: Sequence[str] | None,
    scores: Sequence[str] | None,
    alpha: float | None,
    beta: float | None,
) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Select rows, and order the scores, negatives and metrics to show."""
    known_metrics = [metric for metric in summary["metric"].unique() if not _is_of_id(metric)]
    if not known_metrics:
        raise ValueError(
            "a table needs wrong ID predictions or OOD sets to compare ID✓ with; these results have neither."
        )
    wanted_metrics = _among("metrics", metrics, known_metrics, _METRICS_HINT)
    if odd := [metric for metric in wanted_metrics if not find_metric(metric)]:
        raise ValueError(f"a table ranks metrics whose better direction is known; got {quoted(odd[0])}.{_METRICS_HINT}")
    rows = summary[summary["metric"].isin(wanted_metrics)]
    known_negatives = list(rows["negative"].unique())
    usual = _usual(known_negatives, wanted_metrics)
    wanted_negatives = usual if negatives is None else _among("negatives", negatives, known_negatives)
    known_scores = list(rows["score"].unique())
    wanted_scores = known_scores if scores is None else _among("scores", scores, known_scores)
    rows = rows[rows["negative"].isin(wanted_negatives) & rows["score"].isin(wanted_scores)]
    rows = _at(_at(rows, "beta", beta), "alpha", alpha)
    _refuse_twice(rows, ["model", "score", "negative", "metric"])
    sirc_first = sorted(wanted_scores, key=lambda score: not is_sirc(score))
    order = {"score": sirc_first, "negative": wanted_negatives, "metric": wanted_metrics}
    return rows.reset_index(drop=True), order


def mark(cells: pd.DataFrame) -> pd.Series[str]:
    """Mark the best of each model, negative and metric `bold`, second and third `underline`; equal values share a rank.

    A score alone in its column has no mark.
    """
    goodness = cells["mean"].where(~cells["metric"].map(lower_is_better), -cells["mean"]).round(_DIGITS)
    columns = goodness.groupby([cells["model"], cells["negative"], cells["metric"]])
    rank = columns.rank(method="min", ascending=False)
    several = columns.transform("count") > 1
    named = np.select([several & (rank == 1), several & (rank <= 3)], ["bold", "underline"], "")
    return pd.Series(named, index=cells.index, dtype=object)


def is_sirc(score: str) -> bool:
    """Whether a score is one of SIRC's, which come first."""
    return score.replace(" ", "").startswith("sirc(")


def _usual(known: list[str], metrics: list[str]) -> list[str]:
    """ID✗, the OOD mean and each OOD set; for metrics of a mixture, pooled sets and groups instead of ID✗."""
    sets = [name for name in known if name not in (WRONG, MEAN, POOLED, *_GROUPS)]
    if any(metric.of_negative for metric in map(find_metric, metrics) if metric):
        order = [WRONG, MEAN, *sets]
    else:
        order = [POOLED, *_GROUPS, MEAN, *sets]
    return [name for name in order if name in known] or known


def _is_of_id(label: str) -> bool:
    """Whether a metric describes the ID data, and so stands beside the model's name."""
    metric = find_metric(label)
    return metric is not None and not metric.per_negative


def _among(what: str, wanted: Sequence[str], known: Sequence[str], hint: str = "") -> list[str]:
    names = list(dict.fromkeys(as_names(wanted)))
    if not names or not set(names) <= set(known):
        got = next((quoted(name) for name in names if name not in known), "none")
        raise ValueError(f"`{what}` must be among those of the results: {'; '.join(known)}; got {got}.{hint}")
    return names


def _at(rows: pd.DataFrame, name: str, wanted: float | None) -> pd.DataFrame:
    """Keep the rows at one α or β, and those that it does not affect: NaN, or ID✗ alone, which is at α = 1."""
    fixed = rows[name].isna() | ((rows["negative"] == WRONG) & (name == "alpha"))
    known = sorted(rows[name][~fixed].unique())
    if wanted is None and len(known) > 1:
        raise ValueError(
            f"a table is for one {name}; the results have {', '.join(f'{x:g}' for x in known)}. "
            f"Pass `{name}=…`, one of them."
        )
    if wanted is None or not known:
        return rows
    near = np.isclose(rows[name], wanted, rtol=0, atol=1e-9)
    if not (near & ~fixed).any():
        raise ValueError(f"`{name}` must be among {', '.join(f'{x:g}' for x in known)}; got {quoted(wanted)}.")
    return rows[near | fixed]


def _refuse_twice(frame: pd.DataFrame, keys: list[str]) -> None:
    if (twice := frame.duplicated(keys)).any():
        row = frame[twice].iloc[0]
        raise ValueError(
            f"`results` must have each value once; {', '.join(quoted(row[key]) for key in COLUMNS[:3])} of model "
            f"{quoted(row['model'])} comes twice. Tell runs apart by the column `seed`, and models by `model`."
        )
