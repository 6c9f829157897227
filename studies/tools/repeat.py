"""Comparison of a rerun of an experiment with the kept figures: network by network, within the spread of seeds."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from studies.tools.draws import t_quantile
from studies.tools.measure import FIGURE, summary
from studies.tools.study import listed, table

_WORST = 5


def repeated(rerun: pd.DataFrame, kept: pd.DataFrame) -> pd.DataFrame:
    """Each figure of a rerun and of a summary that was kept, and how far they may lie apart at 95%.

    That is t·s·√(1/n + 1/m), for n kept seeds with a standard deviation of s and m of the rerun. A network with one
    kept seed has no s, and is left out.
    """
    both = summary(rerun).merge(kept, on=FIGURE, suffixes=("_rerun", ""))
    both = both[(both["seeds"] > 1) & both["mean"].notna() & both["mean_rerun"].notna()]
    quantiles = {count: t_quantile(count - 1) for count in both["seeds"].unique()}
    reach = both["seeds"].map(quantiles) * both["std"] * (1 / both["seeds"] + 1 / both["seeds_rerun"]) ** 0.5
    found = both.assign(difference=both["mean_rerun"] - both["mean"], reach=reach)
    return found.assign(within=found["difference"].abs() <= found["reach"] + 1e-12)


def _table(found: pd.DataFrame, rerun: pd.DataFrame) -> str:
    """A row for each network."""
    rows = []
    for model, own in found.groupby("model", sort=False):
        error = own[own["metric"] == "error"].iloc[0]
        seeds = sorted(set(rerun.loc[rerun["model"] == model, "seed"]))
        rows.append(
            [
                str(model),
                ", ".join(map(str, seeds)),
                str(error["seeds"]),
                f"{100 * error['mean_rerun']:.1f}",
                f"{100 * error['mean']:.1f} ± {100 * error['reach']:.1f}",
                f"{int(own['within'].sum()):,} of {len(own):,}",
                f"{100 * own['within'].mean():.1f}%",
            ]
        )
    header = ["", "seeds", "kept seeds", "ID %error", "kept", "figures within", "share"]
    return table(header, rows)


def compared(rerun: pd.DataFrame, kept: pd.DataFrame) -> str:
    """Compare the results of a rerun with a summary: a table of networks, and the figures farthest outside."""
    found = repeated(rerun, kept)
    if found.empty:
        raise ValueError(
            "a rerun must have networks, scores and OOD sets of the kept results, of which there must be two seeds; "
            f"it has {listed(sorted(set(rerun['model'])), 3)}, kept are {listed(sorted(set(kept['model'])), 3)}."
        )
    return "\n".join([_table(found, rerun), "", *_outside(found)])


def _outside(found: pd.DataFrame) -> Iterator[str]:
    yield "About one figure in twenty lies outside by chance; in one rerun more or fewer, as a network's hang together."
    outside = found[~found["within"]]
    if outside.empty:
        return
    ratio = outside["difference"].abs() / outside["reach"].clip(lower=1e-12)
    yield ""
    yield "The farthest outside:"
    yield ""
    for at in ratio.sort_values(ascending=False, kind="stable").index[:_WORST]:
        row = outside.loc[at]
        where = "" if pd.isna(row["alpha"]) else f", α = {row['alpha']:g}, β = {row['beta']:g}"
        yield (
            f"- {row['model']}, `{row['score']}`, {row['negative']}, {row['metric']}{where}: {row['mean_rerun']:.4f}, "
            f"kept {row['mean']:.4f} ± {row['reach']:.4f}"
        )
