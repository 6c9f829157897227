"""Compare `scod` with SIRC and its other rivals over the (α, β) square: the tables of docs/bayes.md.

`columns` fits the witnesses to a run's training rows and keeps the values of all rows, a few MB for a network; `table`
makes every rule from such files.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from scipy import special
from torch import Tensor

import sirc
from sirc.scores import bayes, combine, id_quantiles, parse
from sirc.scores.fitting.bayes_fit import Contrast, calibrate, density_ratio, mean_and_deviation
from studies.tools.draws import t_quantile
from studies.tools.score_table import KEPT, runs_of
from studies.tools.study import signed, table

GRID = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
POINTS = [(alpha, beta) for alpha in GRID for beta in GRID]
METRICS = ("aurr", "aurc")
WITNESSES = ("residual", "vim", "mahalanobis", "mahalanobis_pp", "knn", "l1")
OTHERS = (
    *("relative_mahalanobis", "cop", "react", "scale", "ash", "nnguide", "nci", "fdbd", "gradnorm"),
    *("energy", "max_logit"),
)
RIVALS = ("delta_mahalanobis", "delta_knn")  # scores alone, fitted to the validation rows too
PAPER = ("l1", "residual")  # the S2 scores of the paper
FOUR = ("residual", "mahalanobis_pp", "knn", "l1")
UNSURE = 0.025  # on the side where `scod` is worse, of a 95% interval
GROUPS = 20  # of rows, each left out in turn: the sampling error by the jackknife

Columns = Mapping[str, Tensor]
Rule = Callable[[Columns, float, float, str], Tensor]


def columns(run: Path, device: str = "cpu") -> dict[str, Tensor]:
    """log(S1max − S1) of MSP and the S2 scores of all rows of a run, by set and name, and which predictions are right.

    Training rows are a sample, each scored without itself; `in_sample` has a and b of each S2 by the paper's rule.
    Where the run has no validation rows, a quarter of the test rows are taken for them. A rival that needs more of them
    than there are is left out.
    """
    stores = {path.name: sirc.OutputStore(path) for path in sorted((run / "outputs").iterdir()) if path.is_dir()}
    train = stores.pop("train").load().to(device)
    head, names = sirc.Head.load(run / "head.safetensors").to(device), (*WITNESSES, *OTHERS)
    fitter = sirc.Fitter(f"bayes(msp, {', '.join(names)})", head=head, train=train)
    scorer = fitter.update(train).finish(train)
    ((log_gap, others),) = fitter._id_rows.values()
    found = {"train/log_gap": log_gap, **{f"train/{s2}": x for s2, x in zip(names, others, strict=True)}}
    in_sample = sirc.fit([f"sirc(msp, {s2})" for s2 in names], train, head=head, crossfit=0).parameters
    for key in ("a", "b"):
        found[f"in_sample/{key}"] = torch.cat([in_sample[f"sirc(msp, {s2})"][key] for s2 in names])
    sets = {name: store.load().to(device) for name, store in stores.items()}
    if "validation" not in sets:
        order = torch.randperm(len(sets["test"]), generator=torch.Generator().manual_seed(0))
        cut = len(order) // 4
        sets |= {"validation": sets["test"][order[:cut]], "test": sets["test"][order[cut:]]}
    rivals = sirc.fit(RIVALS, train, head=head, val=sets["validation"], on_unfit="skip")
    for name, rows in sets.items():
        values = scorer._evaluator(rows)
        found |= {f"{name}/{rival}": x for rival, x in rivals(rows).items()}
        found |= {f"{name}/log_gap": values.log_gap(parse("msp"))}
        found |= {f"{name}/{s2}": values.value(parse(s2)) for s2 in names}
        if name in KEPT:
            found[f"{name}/correct"] = rows.correct
    classes = torch.tensor([float(train.num_classes)])
    return {name: x.float().cpu().contiguous() for name, x in found.items()} | {"train/classes": classes}


@dataclass(frozen=True)
class Network:
    """The columns of one network, by set; OOD sets apart."""

    name: str
    train: Columns
    val: Columns
    test: Columns
    ood: Mapping[str, Columns]
    in_sample: Columns
    """a and b of `sirc` with each S2, by the paper's rule."""

    @classmethod
    def load(cls, path: Path) -> Network:
        """Read a file that `columns` wrote."""
        sets: dict[str, dict[str, Tensor]] = {}
        for key, values in load_file(path).items():
            name, _, column = key.partition("/")
            sets.setdefault(name, {})[column] = values.double()
        train, val, test, in_sample = (sets.pop(name) for name in ("train", "validation", "test", "in_sample"))
        return cls(path.stem, train, val, test, sets, in_sample)

    def halves(self) -> tuple[Network, Network]:
        """The same network with half of the OOD rows each, to learn from and to judge on."""

        def half(part: int) -> Network:
            sets = {name: {key: x[part::2] for key, x in rows.items()} for name, rows in self.ood.items()}
            return replace(self, ood=sets)

        return half(0), half(1)


def rules(network: Network) -> dict[str, Rule]:
    """Every rule that needs no OOD rows, as a function of columns, α, β and the metric."""
    found: dict[str, Rule] = {"msp": lambda rows, *_: -rows["log_gap"]}
    for names in (*((s2,) for s2 in WITNESSES), FOUR):
        found[f"sirc(msp, {', '.join(names)})"] = _sirc(network, names)
    for s2 in WITNESSES:
        found[f"both(msp, {s2})"] = _both(network, s2)
        found[f"bayes(msp, {s2})"] = witnessed(network, (s2,))
    found |= {rival: _alone(rival) for rival in RIVALS if rival in network.test}
    return found | {"scod": witnessed(network), "scod, val": witnessed(network, calibrated=True)}


def _alone(name: str) -> Rule:
    return lambda rows, *_: rows[name]


def _sirc(network: Network, names: Sequence[str]) -> Rule:
    scale = {s2: (network.train[s2].mean(), network.train[s2].std(correction=0)) for s2 in names}
    a, b = ([float(x) for x in xs] for xs in zip(*((mu - 3 * sd, 1 / sd) for mu, sd in scale.values()), strict=True))
    return lambda rows, *_: combine.sirc(rows["log_gap"], [rows[s2] for s2 in names], a, b)


def _both(network: Network, s2: str) -> Rule:
    def parts(rows: Columns) -> list[Tensor]:
        return [-rows["log_gap"], rows[s2]]

    knots = [tuple(torch.tensor(x) for x in id_quantiles.id_quantiles(values)) for values in parts(network.val)]
    return lambda rows, *_: id_quantiles.least_quantile(parts(rows), knots)


def witnessed(
    network: Network, names: Sequence[str] = WITNESSES, *, calibrated: bool = False, learn: Network | None = None
) -> Rule:
    """`bayes` as `fit` makes it: from training rows alone, with `val`, or with the OOD rows of `learn` too."""
    below = torch.special.ndtr(torch.tensor(-1.0, dtype=torch.float64))
    low, middle = (torch.stack([network.train[s2].quantile(q) for s2 in names]) for q in (below, 0.5))
    a, b = (middle - 3 * (middle - low)).tolist(), (1 / (middle - low)).tolist()
    claimed = (0.0, math.log1p(-1 / float(network.train["classes"][0])))
    calibration = (0.0, 1.0)
    if calibrated or learn is not None:
        calibration = calibrate(bayes.claimed_odds(network.val["log_gap"], claimed), network.val["correct"] == 0)
    id_rows = network.train if calibration == (0.0, 1.0) else network.val

    def u_and_away(rows: Columns) -> tuple[Tensor, list[Tensor]]:
        return bayes.log_u(rows["log_gap"], claimed, calibration), combine.lowness([rows[s] for s in names], a, b)

    log_u, away = u_and_away(id_rows)
    if learn is None:
        log_mean = bayes.log_mean_exp(bayes.witnessed_log_g(log_u, away))

        def log_g(log_u: Tensor, away: Sequence[Tensor]) -> Tensor:
            return bayes.witnessed_log_g(log_u, away, log_mean)
    else:
        center, sets = mean_and_deviation(log_u), [u_and_away(rows) for rows in learn.ood.values()]
        weights = [torch.full_like(u, 1 / (len(sets) * len(u))) for u, _ in sets]
        terms = torch.cat([bayes.basis(*part, center) for part in sets])
        contrast = Contrast(terms, torch.cat(weights))
        constant, slopes = density_ratio(bayes.basis(log_u, away, center), [contrast], 1 + len(names))
        density = (*center, constant, *slopes.tolist())

        def log_g(log_u: Tensor, away: Sequence[Tensor]) -> Tensor:
            return bayes.log_g(log_u, away, density)

    stages = cache(partial(bayes.aurr_stages, log_u, log_g(log_u, away)))

    def rule(rows: Columns, alpha: float, beta: float, metric: str) -> Tensor:
        log_u, away = u_and_away(rows)
        if metric == "aurc":
            return bayes.least_aurc(log_u, log_g(log_u, away), alpha, beta)
        return bayes.staged_aurr(log_u, log_g(log_u, away), alpha, beta, *stages(alpha, beta))

    return rule


def areas(network: Network, rule: Rule, kept: Tensor | None = None) -> Iterator[tuple[float, float, str, Tensor]]:
    """AURR and AURC of a rule at each point; `kept` are weights of test and OOD rows, several sets of them."""
    right = network.test["correct"].bool()
    sizes = [len(rows["log_gap"]) for rows in network.ood.values()]
    share = torch.cat([torch.full((n,), 1 / (n * len(sizes)), dtype=torch.float64) for n in sizes])
    own = torch.full((len(right),), 1 / len(right), dtype=torch.float64)
    nothing = torch.zeros_like(own), torch.zeros_like(share)
    columns = [(own * right, nothing[1]), (own * ~right, nothing[1]), (nothing[0], share)]
    masses = torch.stack([torch.cat(pair) for pair in columns])[:, None]
    masses = masses if kept is None else masses * kept
    sets = (network.test, *network.ood.values())
    order, sums = torch.empty(0), (masses, masses)
    for alpha, beta in POINTS:
        for metric in METRICS:
            confidence = torch.cat([rule(rows, alpha, beta, metric) for rows in sets])
            if not torch.equal(confidence, order):  # most rules have one order for all points
                sorted_masses = masses[..., confidence.argsort(descending=True)]
                order, sums = confidence, (sorted_masses, sorted_masses.cumsum(-1))
            (right_mass, *_), (ok, wrong, ood) = sums
            accepted = alpha * (ok + wrong) + (1 - alpha) * ood
            risk = (alpha * beta * wrong + (1 - alpha) * (1 - beta) * ood) / accepted
            step = right_mass if metric == "aurr" else accepted.diff(prepend=torch.zeros_like(accepted[:, :1]))
            yield alpha, beta, metric, (risk * step).nansum(-1) / step.sum(-1)


def measure(network: Network) -> pd.DataFrame:
    """AURR and AURC of every rule at every point."""
    rows = [
        (network.name, name, metric, alpha, beta, float(value))
        for name, rule in rules(network).items()
        for alpha, beta, metric, value in areas(network, rule)
    ]
    return pd.DataFrame(rows, columns=["network", "rule", "metric", "alpha", "beta", "value"])


def surely_worse(network: Network, *, calibrated: bool = False) -> pd.DataFrame:
    """The change, in percent, of `scod` against SIRC with each S2 of the paper, the low end of its 95% interval, and p.

    p is the probability of so large a change, or a larger one, where there is none. `calibrated` is `scod` with `val`.
    """
    sizes = [len(rows["log_gap"]) for rows in (network.test, *network.ood.values())]
    group = torch.cat([torch.randperm(n, generator=torch.Generator().manual_seed(0)) % GROUPS for n in sizes])
    kept = (group != torch.arange(-1, GROUPS)[:, None]).double()  # the first leaves none out
    found, ours = [], list(areas(network, witnessed(network, calibrated=calibrated), kept))
    for s2 in PAPER:
        theirs = areas(network, _sirc(network, (s2,)), kept)
        for (alpha, beta, metric, value), (*_, rival) in zip(ours, theirs, strict=True):
            change, *without = 100 * (value / rival).log()
            error = math.sqrt((GROUPS - 1) / GROUPS * float(torch.stack(without).sub(change).square().sum()))
            low = float(change) - t_quantile(GROUPS - 1) * error
            p = special.stdtr(GROUPS - 1, -float(change) / error)
            found.append((network.name, s2, metric, alpha, beta, float(change), low, p))
    return pd.DataFrame(found, columns=["network", "s2", "metric", "alpha", "beta", "change", "low", "p"])


def sure_together(p: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which of many comparisons stay sure where all are looked at: with 95%, none is so by chance (Holm's rule)."""
    order = p.argsort()
    refused = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) <= UNSURE
    return refused[order.argsort()]


def learnt(network: Network) -> pd.DataFrame:
    """The change, in percent, that OOD rows to learn from make to `scod` with `val`, on other OOD rows."""
    some, others = network.halves()
    with_ood = areas(others, witnessed(network, learn=some))
    pairs = zip(with_ood, areas(others, witnessed(network, calibrated=True)), strict=True)
    rows = [
        (network.name, metric, alpha, beta, 100 * math.log(float(value) / float(rival)))
        for (alpha, beta, metric, value), (*_, rival) in pairs
    ]
    return pd.DataFrame(rows, columns=["network", "metric", "alpha", "beta", "change"])


def as_markdown(found: pd.DataFrame) -> str:
    """One row for each rule: its mean change against MSP, with an interval over networks, and the worst from SIRC."""
    wide = found.pivot_table(index=["network", "metric", "alpha", "beta"], columns="rule", values="value", sort=False)
    change = 100 * np.log(wide.div(wide["msp"], axis=0))
    against = 100 * np.log(wide.div(wide[[f"sirc(msp, {s2})" for s2 in PAPER]].min(axis=1), axis=0))
    rows = []
    for rule in found["rule"].unique():
        cells = []
        for metric in METRICS:
            by_network = change[rule].xs(metric, level="metric").groupby("network").mean()
            cells += [_with_interval(by_network.to_numpy()), signed(against[rule].xs(metric, level="metric").max())]
        rows.append([f"`{rule}`", *cells])
    return table(["rule", *(f"{metric.upper()} {what}" for metric in METRICS for what in ("mean", "worst"))], rows)


def doubled(found: pd.DataFrame) -> str:
    """The mean change of AURR by `scod` less twice that by `sirc(msp, residual)`, with an interval over networks."""
    wide = found[found["metric"] == "aurr"].pivot_table(
        index=["network", "alpha", "beta"], columns="rule", values="value"
    )
    change = (100 * wide.div(wide["msp"], axis=0).transform(np.log)).groupby("network").mean()
    return _with_interval((change["scod"] - 2 * change["sirc(msp, residual)"]).to_numpy())


def _with_interval(values: npt.NDArray[np.float64], digits: int = 1) -> str:
    if len(values) < 2:
        return signed(values.mean(), digits)
    half = t_quantile(len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{signed(values.mean(), digits)} ± {half:.{digits}f}"


def at_half(networks: Sequence[Network]) -> str:
    """%AUROC of ID✗ and of OOD input, mean over sets, and AURR × 100 at α = β = ½: means over networks.

    Of `sirc` and of `bayes` with one S2, the best by AURR on these networks is shown beside `residual`.
    """
    found: dict[str, list[list[float]]] = {}
    for network in networks:
        right = network.test["correct"].bool()
        for name, rule in rules(network).items():
            own, *outside = (rule(rows, 0.5, 0.5, "aurr") for rows in (network.test, *network.ood.values()))
            rankings = [sirc.Ranking(own[right], own[~right], other) for other in outside]
            values = [[float(r.auroc("wrong")), float(r.auroc("ood")), float(r.aurr(0.5, 0.5))] for r in rankings]
            found.setdefault(name, []).append((100 * np.mean(values, 0)).tolist())
    means = {name: np.mean(rows, 0) for name, rows in found.items()}
    alone = ([f"{kind}(msp, {s2})" for s2 in WITNESSES] for kind in ("sirc", "bayes"))
    best = [min(names, key=lambda name: means[name][2]) for names in alone]
    rows = []
    for name in dict.fromkeys(["msp", "sirc(msp, residual)", *best, "scod"]):
        wrong, ood, aurr = means[name]
        change = np.array(found[name])[:, 2] - np.array(found["msp"])[:, 2]
        rows.append([f"`{name}`", f"{wrong:.1f}", f"{ood:.1f}", f"{aurr:.2f} ({_with_interval(change, 2)})"])
    return table(["at α = β = ½", "ID✗", "OOD mean", "AURR"], rows)


def _counted(name: str, part: pd.DataFrame) -> str:
    """How many comparisons are surely worse, one by one and all together, and which."""
    together = sure_together(part["p"].to_numpy())
    lines = [
        f"{name} against sirc(msp, {' or '.join(PAPER)}), {len(part)} comparisons: surely worse, one by one, at "
        f"{(part['low'] > 0).sum()}, all together at {together.sum()}; at worst {signed(part['change'].max())}%"
    ]
    for row in part.assign(together=together)[part["low"] > 0].itertuples():
        more = ", all together too" if row.together else ""
        lines.append(f"- {row.network}, {row.s2}, α = {row.alpha}, β = {row.beta}: {signed(row.change)}%{more}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep the columns of runs, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    keep = commands.add_parser("columns", help="fit the witnesses and keep the values of all rows")
    keep.add_argument("folders", nargs="+", type=Path, help="what `sirc run` or `sirc demo` left")
    keep.add_argument("--out", type=Path, required=True, help="the folder for the files")
    keep.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    for name, words in (("table", "print the tables of docs/bayes.md"), ("half", "print the table of docs/scores.md")):
        show = commands.add_parser(name, help=words)
        show.add_argument("files", nargs="+", type=Path, help="what `columns` kept, one for each network")
    asked = parser.parse_args(arguments)
    if asked.command == "columns":
        asked.out.mkdir(parents=True, exist_ok=True)
        for run in runs_of(asked.folders):
            save_file(columns(run, asked.device), asked.out / f"{run.parent.name}-{run.name}.safetensors")
        return
    networks = [Network.load(path) for path in asked.files]
    if asked.command == "half":
        print(at_half(networks))
        return
    measured = pd.concat(map(measure, networks))
    print(as_markdown(measured), end="\n\n")
    print(f"AURR, change by scod less twice that by sirc(msp, residual): {doubled(measured)}")
    for name, calibrated in (("scod", False), ("scod, val", True)):
        sure = pd.concat([surely_worse(network, calibrated=calibrated) for network in networks], ignore_index=True)
        for metric, part in sure.groupby("metric", sort=False):
            print(_counted(f"{metric.upper()}, {name}", part))
    with_ood = pd.concat(map(learnt, networks))
    for metric, part in with_ood.groupby("metric", sort=False):
        mean, most = part["change"].mean(), part["change"].max()
        print(f"{metric.upper()}, g learnt against none: mean {signed(mean)}%, at worst {signed(most)}%")


if __name__ == "__main__":
    main()
