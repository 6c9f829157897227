"""Pictures of the concepts, drawn from simulated scores in the house style: `python docs/tools/pictures.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from scipy.stats import norm

import sirc
from sirc.report.figures import GROUPS, save
from sirc.report.figures.style import drawn, new_figure

HERE = Path(__file__).resolve().parents[1] / "concepts" / "images"
RECALL = 0.95
SOFTMAX = {"correct": (4.0, 1.5), "wrong": (1.4, 1.0), "ood": (2.2, 1.2)}  # mean and std of S1


class Rows(NamedTuple):
    """Simulated inputs of one kind: a softmax score S1 and a feature score S2; higher is more confident."""

    s1: np.ndarray
    s2: np.ndarray


def simulated(count: int = 4000) -> dict[str, Rows]:
    """The three kinds, one ID row in five wrong: S1 knows errors well and OOD input a little, S2 OOD input alone."""
    rng = np.random.default_rng(0)

    def rows(share: float, s1: tuple[float, float], s2: tuple[float, float]) -> Rows:
        size = round(count * share)
        return Rows(rng.normal(*s1, size), rng.normal(*s2, size))

    return {
        "correct": rows(0.8, SOFTMAX["correct"], (0, 1)),
        "wrong": rows(0.2, SOFTMAX["wrong"], (0, 1)),
        "ood": rows(1, SOFTMAX["ood"], (-4, 2)),
    }


RULES: dict[str, Callable[[Rows], np.ndarray]] = {
    "softmax": lambda rows: rows.s1,
    "detector": lambda rows: rows.s1 / 2 + rows.s2,
    "SIRC": lambda rows: rows.s1 - np.logaddexp(0, -3 - rows.s2),
}
SHADES = {"softmax": "#555555", "detector": "#DDAA33", "SIRC": "#882255"}


def ranking(rule: str, kinds: dict[str, Rows]) -> sirc.Ranking:
    """The ranking of the three kinds by one rule."""
    return sirc.Ranking(*(RULES[rule](kinds[kind]) for kind in ("correct", "wrong", "ood")))


@drawn
def three_kinds() -> Figure:
    """Draw the confidences of the three kinds, and a threshold that accepts most of ID✓."""
    kinds = simulated()
    figure, ((axes,),) = new_figure(1, 1, width=6.2, height=2.4)
    grid = np.linspace(-3, 9, 300)
    for kind, look in GROUPS.items():
        values = kinds[kind].s1
        heights = np.exp(-((grid[:, None] - values) ** 2) / 0.08).mean(-1)
        axes.plot(grid, heights, label=look.name, **look.line)
        axes.fill_between(grid, heights, where=grid > 2, color=look.colour, alpha=0.18, linewidth=0)
    axes.axvline(2, color="0.2", linewidth=1)
    axes.text(2.1, axes.get_ylim()[1], "accepted →", va="top")
    axes.text(1.9, axes.get_ylim()[1], "← rejected", va="top", ha="right")
    axes.set(xlabel="confidence", yticks=[], ylabel="inputs", xlim=(-3, 9), ylim=(0, None))
    axes.legend(loc="center right")
    return figure


@drawn
def planes() -> Figure:
    """Draw S1 and S2 of the three kinds, and what each rule accepts at a recall of 95%."""
    kinds, shown = simulated(), simulated(130)
    figure, (panels,) = new_figure(1, 3, height=2.7, sharex=True, sharey=True)
    x, y = np.meshgrid(np.linspace(-2, 8.5, 300), np.linspace(-9.5, 3.5, 300))
    for axes, (name, rule) in zip(panels, RULES.items(), strict=True):
        cut = ranking(name, kinds).threshold(recall=RECALL)
        axes.contourf(x, y, rule(Rows(x, y)) >= cut, levels=[0.5, 1], colors=["0.9"])
        axes.contour(x, y, rule(Rows(x, y)), levels=[cut], colors="black", linewidths=1, linestyles="-")
        for kind, look in GROUPS.items():
            axes.scatter(*shown[kind], s=6, marker=look.marker, color=look.colour, label=look.name, linewidths=0)
        axes.set_title(f"{name} alone" if name == "softmax" else name)
        axes.set(xlabel="S1, from the softmax", xlim=(-2, 8.5), ylim=(-9.5, 3.5))
    panels[0].set_ylabel("S2, from the features")
    panels[0].legend(loc="lower right")
    return figure


@drawn
def trade() -> Figure:
    """Draw the share of mistakes that each rule lets through when it accepts 95% of ID✓."""
    kinds = simulated()
    figure, ((axes,),) = new_figure(1, 1, width=5, height=1.9)
    for place, kind in enumerate(("wrong", "ood")):
        for offset, name in enumerate(RULES):
            share = float(ranking(name, kinds).fpr(kind, recall=RECALL))
            bar = axes.barh(place + 0.27 * offset, share, 0.25, color=SHADES[name], label=None if place else name)
            axes.bar_label(bar, labels=[f"{share:.0%}"], padding=3)
    axes.set(yticks=[0.27, 1.27], yticklabels=["ID✗", "OOD"], xlim=(0, 1), xlabel="share accepted")
    axes.invert_yaxis()
    axes.legend(loc="lower right")
    return figure


def _dots(axes: Axes, alpha: float) -> None:
    """A hundred inputs of a mixture in which the network errs on one ID input in five."""
    right = round(80 * alpha)
    counts = {"correct": right, "wrong": round(100 * alpha) - right, "ood": 100 - round(100 * alpha)}
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    for kind, look in GROUPS.items():
        places = np.array([divmod(i, 20) for i, what in enumerate(kinds) if what == kind])
        axes.scatter(places[:, 1], -places[:, 0], s=26, marker=look.marker, color=look.colour, linewidths=0)
    axes.set_title(", ".join([f"α = {alpha:g}", *(f"{n} {GROUPS[k].name}" for k, n in counts.items())]), loc="left")
    axes.axis("off")


@drawn
def mixtures() -> Figure:
    """Draw a hundred inputs for three values of α."""
    figure, rows = new_figure(3, 1, width=5, height=3.0)
    for (axes,), alpha in zip(rows, (0.95, 0.7, 0.3), strict=True):
        _dots(axes, alpha)
    return figure


@drawn
def best_map() -> Figure:
    """Draw which of the three rules has the lowest AURR at each α and β."""
    kinds = simulated()
    alphas, betas = np.linspace(0.05, 0.99, 60), np.linspace(0.02, 0.98, 60)
    areas = np.stack([np.asarray(ranking(name, kinds).aurr(alphas, betas)) for name in RULES])
    figure, ((axes,),) = new_figure(1, 1, width=4.2, height=2.9)
    axes.pcolormesh(
        alphas, betas, areas.argmin(0).T, cmap=ListedColormap(list(SHADES.values())), vmin=0, vmax=2, rasterized=True
    )
    for place, (name, shade) in enumerate(SHADES.items()):
        if (areas.argmin(0) == place).any():
            axes.plot([], [], "s", color=shade, label=name)
    axes.set(xlabel="α, the share of known classes", ylabel="β, the cost of an error", title="lowest risk")
    figure.legend(loc="outside right center")
    return figure


@drawn
def promises() -> Figure:
    """Draw the recall to come of thresholds that were set on 300 right predictions, with and without δ."""
    rng = np.random.default_rng(0)
    plain, safe = [], []
    for _ in range(400):
        drawn_rows = rng.random(300)  # uniform: the recall to come is 1 minus the threshold
        for found, delta in ((plain, None), (safe, 0.05)):
            cut = sirc.threshold.at_recall(drawn_rows, np.ones(300), RECALL, delta=delta).value
            found.append(1 - cut)
    figure, (panels,) = new_figure(1, 2, width=6.6, height=2.2, sharex=True, sharey=True)
    bins = np.linspace(0.9, 1, 41)
    for axes, title, found in zip(panels, ("95% of the rows at hand", "with δ = 5%"), (plain, safe), strict=True):
        short = np.mean(np.array(found) < RECALL)
        axes.hist([v for v in found if v < RECALL], bins, color=GROUPS["wrong"].colour)
        axes.hist([v for v in found if v >= RECALL], bins, color=GROUPS["correct"].colour)
        axes.axvline(RECALL, color="0.2", linewidth=1)
        axes.set(title=f"{title}: {short:.0%} fall short", xlabel="recall on data to come")
    panels[0].set_ylabel("of 400 calibrations")
    return figure


@drawn
def witnesses() -> Figure:
    """Draw the AURR of one witness, and of up to six that each know part of what is strange."""
    rng = np.random.default_rng(0)
    most, shift = 6, 1.2
    s1 = {kind: rows.s1 for kind, rows in simulated().items()}
    heard = {kind: rng.normal(-shift if kind == "ood" else 0, 1, (len(rows), most)) for kind, rows in s1.items()}
    # All densities are known here: u and g are what `bayes` has to estimate from data.
    densities = {kind: {of: norm.logpdf(rows, *SOFTMAX[of]) for of in SOFTMAX} for kind, rows in s1.items()}
    id_density = {k: np.logaddexp(np.log(0.8) + d["correct"], np.log(0.2) + d["wrong"]) for k, d in densities.items()}
    figure, ((axes,),) = new_figure(1, 1, width=5, height=2.4)
    for alpha, dash in ((0.3, "-"), (0.7, "--"), (0.95, ":")):
        areas = []
        for number in range(most + 1):
            confidences = []
            for kind, density in densities.items():
                log_u = np.log(0.2) + density["wrong"] - id_density[kind]
                log_g = density["ood"] - id_density[kind]
                log_g = log_g + (-shift * heard[kind][:, :number] - shift**2 / 2).sum(-1)
                confidences.append(sirc.functional.bayes(log_u, log_g, alpha, 0.5))
            areas.append(100 * float(sirc.Ranking(*confidences).aurr(alpha, 0.5)))
        axes.plot(areas, linestyle=dash, marker="o", color=SHADES["SIRC"], label=f"α = {alpha:g}")
    axes.set(xlabel="witnesses heard", ylabel="AURR (×10²)", ylim=(0, None))
    axes.legend()
    return figure


PICTURES = (three_kinds, planes, trade, mixtures, best_map, promises, witnesses)


def draw(folder: Path) -> None:
    """Draw all pictures into a folder, each under the name of its function."""
    folder.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        save(picture(), folder / picture.__name__.replace("_", "-"), ["svg"])


if __name__ == "__main__":
    draw(HERE)
