"""Set the combinations that know α and β beside SIRC on stored outputs: the table of docs/bayes.md."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import sirc
from sirc.experiment.arrays import load_head
from sirc.scores import bayes
from studies.tools.score_table import KEPT, runs_of

LEARNT = "bayes, g learnt"
TUNED = 0.4  # of the test rows and of each OOD set: what g is learnt from, and no rule is judged on
GRID = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
SECONDS = ("residual", "mahalanobis", "knn", "vim", "l1")
METRICS = ("aurc", "aurr")
HEADS = [f"{metric.upper()} {what}" for metric in METRICS for what in ("worst", "α ≤ 0.5", "α > 0.5")]


def rules(s1: str, s2: str, alpha: float, beta: float, metric: str) -> dict[str, str]:
    """The spec of each rule at one (α, β)."""
    return {
        "sirc": f"sirc({s1}, {s2})",
        s1: s1,
        "additive κ=1": f"additive({s1}, {s2}, kappa=1)",
        "additive κ=0.3": f"additive({s1}, {s2}, kappa=0.3)",
        "bayes": f"bayes({s1}, {s2}, alpha={alpha}, beta={beta}, metric={metric})",
    }


def measure(run: Path, s1: str, seconds: Sequence[str], grid: Sequence[float], device: str = "cpu") -> pd.DataFrame:
    """AURC and AURR of each rule over the (α, β) square on one run; OOD sets weigh the same."""
    head = load_head(run / "head.safetensors")
    stores = {path.name: sirc.OutputStore(path) for path in sorted((run / "outputs").iterdir()) if path.is_dir()}
    val, test = split(stores["test"].load().to(device))
    halves = {name: split(store.load().to(device)) for name, store in stores.items() if name not in KEPT}
    cells = [(alpha, beta, metric) for alpha in grid for beta in grid for metric in METRICS]
    specs = [spec for s2 in seconds for cell in cells for spec in rules(s1, s2, *cell).values()]
    known = sirc.fit(list(dict.fromkeys(specs)), stores["train"], head=head, device=device)
    with_ood = {"val": val, "ood": {name: first for name, (first, _) in halves.items()}}
    ranks = [spec for spec in known.specs if spec.startswith("bayes")]
    learnt = sirc.fit(ranks, stores["train"], head=head, device=device, **with_ood)
    judged = [test, *(second for _, second in halves.values())]
    scores = {fit: [{s: values.cpu() for s, values in fit(rows).items()} for rows in judged] for fit in (known, learnt)}
    correct = test.correct.cpu()
    rows = []
    for s2 in seconds:
        rankings: dict[tuple[sirc.Scorer, str], sirc.Ranking] = {}
        for alpha, beta, metric in cells:
            asked = [(rule, known, spec) for rule, spec in rules(s1, s2, alpha, beta, metric).items()]
            for rule, fit, spec in (*asked, (LEARNT, learnt, asked[-1][2])):
                if (fit, spec) not in rankings:
                    own, *outside = (confidences[spec] for confidences in scores[fit])
                    rankings[fit, spec] = ranking(own, correct, outside)
                value = float(getattr(rankings[fit, spec], metric)(alpha, beta))
                rows.append((s2, rule, metric, alpha, beta, value))
    return pd.DataFrame(rows, columns=["s2", "rule", "metric", "alpha", "beta", "value"])


def split(outputs: sirc.Outputs) -> tuple[sirc.Outputs, sirc.Outputs]:
    """Rows to learn from and rows to judge on, at random with a fixed seed."""
    order = torch.randperm(len(outputs), generator=torch.Generator().manual_seed(0))
    cut = int(TUNED * len(outputs))
    return outputs[order[:cut]], outputs[order[cut:]]


def ranking(own: Tensor, correct: Tensor, outside: Sequence[Tensor]) -> sirc.Ranking:
    """The order of one score, with OOD sets that weigh the same."""
    weights = torch.cat([torch.full((len(part),), 1 / len(part), dtype=torch.float64) for part in outside])
    return sirc.Ranking(own[correct], own[~correct], torch.cat(list(outside)), ood_weights=weights)


def against_sirc(found: pd.DataFrame) -> pd.DataFrame:
    """Change against SIRC in percent: the worst of all (α, β), and the mean where OOD is common and where it is not."""
    wide = found.pivot_table(index=["s2", "metric", "alpha", "beta"], columns="rule", values="value", sort=False)
    change = 100 * (wide.div(wide["sirc"], axis=0) - 1).drop(columns="sirc")
    long = change.reset_index().melt(["s2", "metric", "alpha", "beta"], var_name="rule", value_name="change")
    common = long["alpha"] <= 0.5
    keys = ["s2", "rule", "metric"]
    return pd.DataFrame(
        {
            "worst": long.groupby(keys, sort=False)["change"].max(),
            "common": long[common].groupby(keys, sort=False)["change"].mean(),
            "rare": long[~common].groupby(keys, sort=False)["change"].mean(),
        }
    )


def as_markdown(name: str, tables: Sequence[pd.DataFrame]) -> str:
    """One row for each S2 and rule: the worst over runs, and the means over runs."""
    found = over_runs(tables)
    lines = [f"| {name} | rule | {' | '.join(HEADS)} |", "|---|---|" + "---:|" * len(HEADS)]
    keys = sorted(dict.fromkeys(key[:2] for key in found.index), key=lambda key: SECONDS.index(key[0]))
    for s2, rule in keys:
        own = found.xs(s2, level="s2").xs(rule, level="rule")
        lines.append(f"| `{s2}` | {rule} | {_cells(own)} |")
    return "\n".join(lines)


def summary(networks: Mapping[str, Sequence[pd.DataFrame]]) -> str:
    """One row for each network and rule: the worst of all S2, and the means over them."""
    lines = [f"| network | rule | {' | '.join(HEADS)} |", "|---|---|" + "---:|" * len(HEADS)]
    for name, tables in networks.items():
        found = over_runs(tables)
        for rule in dict.fromkeys(key[1] for key in found.index):
            some = found.xs(rule, level="rule").groupby("metric", sort=False)
            together = some.agg({"worst": "max", "common": "mean", "rare": "mean"})
            lines.append(f"| {name} | {rule} | {_cells(together)} |")
    return "\n".join(lines)


def over_runs(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The worst over runs, and the means over them."""
    together = pd.concat(tables).groupby(level=["s2", "rule", "metric"], sort=False)
    return together.agg({"worst": "max", "common": "mean", "rare": "mean"})


def _cells(table: pd.DataFrame) -> str:
    return " | ".join(_signed(float(table.loc[metric, what])) for metric in METRICS for what in table.columns)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−") if np.isfinite(value) else "–"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one table for each folder of runs."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: compare_rules.py sirc-demo/glyphs_resnet")
    parser.add_argument(
        "networks", nargs="+", metavar="[TITLE=]FOLDER", help="what `sirc run` or `sirc demo` left for one network"
    )
    parser.add_argument("--s1", default="msp", help="the S1 of all combinations (default: msp)")
    parser.add_argument("--s2", nargs="+", default=SECONDS, choices=SECONDS, help="the S2 scores")
    parser.add_argument("--grid", nargs="+", type=float, default=GRID, help="the values of α and of β")
    parser.add_argument("--constants", nargs=4, type=float, metavar=("q", "δ", "η", "ε"), help="of the surrogate")
    parser.add_argument("--device", default="cpu", help="where to fit and to score: cpu, cuda (default: cpu)")
    asked = parser.parse_args(arguments)
    if asked.constants:
        bayes._SHOWN, bayes._SHIFT, bayes._POWER, bayes._ERRORS = asked.constants
    try:
        named = {title: runs_of([folder]) for title, folder in map(_titled, asked.networks)}
    except ValueError as error:
        parser.error(str(error))
    networks = {
        name: [against_sirc(measure(run, asked.s1, asked.s2, asked.grid, asked.device)) for run in runs]
        for name, runs in named.items()
    }
    print(summary(networks), end="\n\n")
    for name, tables in networks.items():
        print(as_markdown(f"{name}, S1 {asked.s1}", tables), end="\n\n")


def _titled(text: str) -> tuple[str, Path]:
    title, equals, folder = text.rpartition("=")
    return (title, Path(folder)) if equals else (Path(folder).name, Path(folder))


if __name__ == "__main__":
    main()
