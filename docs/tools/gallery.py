"""Gallery of the figures and a table, each with the code that makes it: `python docs/tools/gallery.py docs/gallery`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sirc.report import figures
from sirc.report.tables import Table

INTRODUCTION = """\
# Gallery

Every kind of figure, and a table, with the lines that make it. The outputs are made up, so the numbers mean nothing;
[Figures](../figures.md) and [Tables](../tables.md) explain the functions.

All of them start with these lines:
"""

SETUP = """\
import pandas as pd
import torch
import sirc
from sirc.data import Glyphs, Noise
from sirc.report import figures
from sirc.report.tables import table

SPECS = ["msp", "energy", "vim", "sirc(msp, l1)", "sirc(msp, residual)", "sirc(entropy, residual)"]


def run(seed):
    torch.manual_seed(seed)
    classes, plane = torch.randn(10, 64), torch.randn(12, 64)

    def outputs(count, strength, strange, labelled=False):
        labels = torch.randint(0, 10, (count,))
        usual = strength * classes[labels] + 0.4 * torch.randn(count, 12) @ plane
        features = (usual + strange * torch.randn(count, 64)).relu()
        return sirc.Outputs(features @ classes.T / 8, features, labels if labelled else None)

    scorer = sirc.fit(SPECS, outputs(2000, 1.0, 0.4, True), head=sirc.Head(classes / 8))
    ood = {"near": outputs(800, 0.7, 0.6), "far": outputs(800, 0.6, 0.9)}
    return scorer, outputs(1500, 1.0, 0.4, True), ood


def evaluation(seed):
    scorer, test, ood = run(seed)
    return sirc.evaluate(scorer, test, ood, groups={"Close": ["near"], "Far": ["far"]})


ev = evaluation(0)
runs = [ev, evaluation(1), evaluation(2)]  # one model, trained three times
"""

# The name of each picture, a sentence about it, and the code whose last line makes it.
ENTRIES = {
    "densities": (
        "How ID✓, ID✗ and OOD lie along two scores: left as OOD detection groups them, right as SCOD does. What should "
        "be rejected is hatched; the dashed line is the threshold that accepts 95% of the positives.",
        'figures.densities(ev, ["msp", "vim"])',
    ),
    "separation": (
        "FPR against TPR. Low is good; markers stand at FPR@95.",
        'figures.separation(ev, ["msp", "vim"])',
    ),
    "risks": (
        "Risk against coverage, with the oracle, and risk against recall, with Risk@95.",
        'figures.risks(ev, ["msp", "vim", "sirc(msp, residual)"], alpha=0.5, beta=0.5)',
    ),
    "sweep-alpha": (
        "Metrics against the share of ID input, mean ± std over training runs, on all OOD sets and on each group.",
        'figures.sweeps(runs, "alpha", ["msp", "vim", "sirc(msp, residual)"])',
    ),
    "sweep-beta": (
        "The same against the cost of accepting ID✗.",
        'figures.sweeps(runs, "beta", ["msp", "vim", "sirc(msp, residual)"])',
    ),
    "changes": (
        "The change in FPR@95 against MSP of every score. Left is better; whiskers are ± std over training runs.",
        'figures.changes({"A network": runs})',
    ),
    "plane": (
        "The three groups on the plane of S1 and S2, over the contours of four ways to combine them.",
        'scorer, test, ood = run(0)\nfigures.plane(figures.Plane.of(scorer, "sirc(msp, residual)", test, ood["far"]))',
    ),
    "plane-grid": (
        "SIRC's contours for several pairs (rows) and models (columns).",
        """\
def planes(seed, pairs=("sirc(msp, residual)", "sirc(entropy, residual)")):
    scorer, test, ood = run(seed)
    return {pair: figures.Plane.of(scorer, pair, test, ood["far"]) for pair in pairs}


figures.plane_grid({"A network": planes(0), "Another": planes(1)})""",
    ),
    "samples": (
        "Images of each dataset, with their number.",
        'figures.sample_images({"Letters": Glyphs("letters", count=40), "Noise": Noise(40, size=64)})',
    ),
    "table": (
        "The table of a paper: the best value of each column is bold, second and third are underlined.",
        """\
results = pd.concat(ev.table.assign(model="A network", seed=seed) for seed, ev in enumerate(runs))
table(results, spread=True)  # .text(), .markdown(), .html(), .latex(), .csv()""",
    ),
}


def main() -> None:
    """Read the command line and write the gallery."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the folder for gallery.md and its pictures")
    for path in write(parser.parse_args().out):
        print(path)


def write(out: Path) -> list[Path]:
    """Draw every entry into a folder, write the page that shows them, and give the paths."""
    out.mkdir(parents=True, exist_ok=True)
    names: dict[str, Any] = {}
    exec(SETUP, names)
    parts, paths = [INTRODUCTION, _code(SETUP)], []
    for name, (sentence, code) in ENTRIES.items():
        *before, last = code.rsplit("\n", 1)
        exec("\n".join(before), names)
        made = eval(last, names)
        if isinstance(made, Table):
            picture = made.markdown()
        else:
            paths += figures.save(made, out / name, ["png"])
            picture = f"![{sentence}]({name}.png)\n"
        parts += [f"## {name.replace('-', ' ').capitalize()}\n", f"{sentence}\n", _code(code), picture]
    page = out / "gallery.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    return [page, *paths]


def _code(lines: str) -> str:
    return f"```python\n{lines.rstrip()}\n```\n"


if __name__ == "__main__":
    main()
