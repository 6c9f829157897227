"""Measure every score on stored outputs, alone and in combinations, and print the tables of docs/scores.md."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch

import sirc
from sirc.scores import registry
from studies.tools.study import table

BASELINE = "msp"
KEPT = ("train", "test", "validation")  # stores that hold ID data; all others are OOD sets
# negative, metric, heading and digits of the four columns; all are of the mean over OOD sets but the first.
COLUMNS = (
    ("wrong", "auroc", "ID✗ ↑", 1),
    ("OOD mean", "auroc", "OOD ↑", 1),
    ("OOD mean", "aurr", "AURR ↓", 2),
    ("OOD mean", "aurc", "AURC ↓", 2),
)
COMBINATIONS = (
    *("sirc(msp, {}, budget=0.1)", "sirc(msp, {}, budget=0.5)"),
    *("additive(msp, {}, kappa=1)", "additive(msp, {}, kappa=0.3)", "additive(msp, {}, kappa=0.1)"),
    *("bayes(msp, {})", "bayes(msp, {}, metric=aurr)"),
)
COMBINED = ("residual", "knn")
TUNED = {"tempered_msp": "temperature", "max_logit_pnorm": "p"}
BETTER, WORSE = "▲", "▽"
START, END = "<!-- score_table: start -->", "<!-- score_table: end -->"


def specs_by_table() -> dict[str, list[str]]:
    """The specs of each table, in the order in which scores are registered."""
    # Without those that compare with rows of `val`: the page has no figures of them.
    alone = [*(name for name in registry.names() if not registry.get(name).val), "vim"]
    first = [name for name in registry.names() if registry.get(name).log_gap]
    return {
        "Alone": alone,
        "As S1: `sirc(S1, residual)`": [BASELINE, *(f"sirc({name}, residual)" for name in first)],
        "As S2: `sirc(msp, S2)`": [BASELINE, *(f"sirc(msp, {name})" for name in alone if name != BASELINE)],
        "Other combinations": [c.format(name) for name in COMBINED for c in ("sirc(msp, {})", *COMBINATIONS)],
    }


def baselines() -> dict[str, str]:
    """What a spec is compared with, where that is not MSP: other combinations with SIRC."""
    return {c.format(name): f"sirc(msp, {name})" for name in COMBINED for c in COMBINATIONS}


def runs_of(folders: Iterable[Path]) -> list[Path]:
    """The runs, one folder for each seed, in folders that `sirc run` or `sirc demo` left."""
    found = []
    for folder in folders:
        runs = [folder] if (folder / "outputs").is_dir() else sorted(p.parent for p in folder.glob("*/outputs"))
        if not runs:
            raise ValueError(f"'{folder}' must hold SEED/outputs/train, as `sirc run` leaves them; it holds none")
        found += runs
    return found


def measure(
    run: Path, specs: Sequence[str], *, tune: int, draws: int, device: str = "cpu"
) -> tuple[pd.DataFrame, dict[str, float]]:
    """The four figures of each spec on one run, and 95% intervals of their differences to what it is compared with.

    `tune` test rows, drawn with a fixed seed, go to `fit(val=…)`, and all others are tested, for all scores alike.
    With them comes what a reader wants to know of the run: its error on all test rows, and what was tuned.
    """
    names = [path.parent.name for path in sorted((run / "outputs").glob("*/meta.json"))]
    stores = {name: sirc.OutputStore(run / "outputs" / name) for name in names}
    if missing := [name for name in ("train", "test") if name not in stores]:
        raise ValueError(f"'{run}' must hold outputs/{missing[0]}; it holds {', '.join(names) or 'none'}")
    rows = stores["test"].load().to(device)
    if not 0 < tune < len(rows):
        raise ValueError(f"rows to tune on must be fewer than the {len(rows)} test rows, and some; got {tune}")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    val, test = rows[order[:tune]], rows[order[tune:]]
    scorer = sirc.fit(
        list(specs), stores["train"], head=sirc.Head.load(run / "head.safetensors"), val=val, device=device
    )
    ood = {name: store.load().to(device) for name, store in stores.items() if name not in KEPT}
    evaluation = sirc.evaluate(scorer, test, ood=ood, alpha=0.5, beta=0.5)
    keys = ["score", "negative", "metric"]
    own = baselines()
    compared = pd.concat(
        evaluation.compare(
            baseline,
            method="bootstrap",
            draws=draws,
            scores=[spec for spec in specs if own.get(spec, BASELINE) == baseline],
            negatives=["wrong", "OOD mean"],
        )
        for baseline in dict.fromkeys([BASELINE, *own.values()])
    )
    merged = evaluation.table.merge(compared[[*keys, "low", "high"]], on=keys, how="left")
    wanted = [*(column[:2] for column in COLUMNS), *((name, "auroc") for name in ood)]
    figures = merged.merge(pd.DataFrame(wanted, columns=["negative", "metric"]), on=["negative", "metric"])
    facts = {"error": 1 - float(rows.correct.double().mean())}
    facts |= {key: float(scorer.parameters[leaf][key]) for leaf, key in TUNED.items() if leaf in scorer.parameters}
    return figures[[*keys, "value", "low", "high"]], facts


def judged(measured: pd.DataFrame) -> pd.DataFrame:
    """Mean and std over runs, and `mark`: better or worse where the interval of the difference says so in every run."""
    rising = measured["metric"].eq("auroc")
    up, down = measured["low"] > 0, measured["high"] < 0
    marked = measured.assign(better=up.where(rising, down), worse=down.where(rising, up))
    found = marked.groupby(["score", "negative", "metric"], sort=False).agg(
        mean=("value", "mean"), std=("value", "std"), better=("better", "all"), worse=("worse", "all")
    )
    mark = [BETTER if b else WORSE if w else "" for b, w in zip(found["better"], found["worse"], strict=True)]
    return found.assign(mark=mark)[["mean", "std", "mark"]]


def figures_table(specs: Sequence[str], results: Mapping[str, pd.DataFrame]) -> str:
    """One table: a row for each spec, four columns for each data set, in percent."""
    header = [""]
    for title in results:
        header += [f"{title}: {COLUMNS[0][2]}", *(column[2] for column in COLUMNS[1:])]
    rows = []
    for spec in specs:
        cells = [f"`{spec}`"]
        for found in results.values():
            for negative, metric, _, digits in COLUMNS:
                mean, std, mark = found.loc[(spec, negative, metric)]
                spread = "" if pd.isna(std) else f" ± {200 * std:.{digits}f}"
                cells.append(f"{100 * mean:.{digits}f}{spread} {mark}".rstrip())
        rows.append(cells)
    return table(header, rows)


def glance(specs: Mapping[str, str], found: pd.DataFrame) -> str:
    """Scores by what their specs do to ID✗ and to OOD, against MSP."""
    words = {BETTER: "better", "": "as MSP", WORSE: "worse"}
    places = {
        name: tuple(found.loc[(spec, *column[:2]), "mark"] for column in COLUMNS[:2])
        for name, spec in specs.items()
        if name != BASELINE
    }
    rows = []
    for wrong, word in words.items():
        cells = [", ".join(f"`{name}`" for name in places if places[name] == (wrong, ood)) for ood in words]
        rows.append([f"ID✗\\|ID✓ {word}", *cells])
    return table(["", *(f"OOD\\|ID✓ {word}" for word in words.values())], rows, "---")


def by_set(specs: Sequence[str], found: pd.DataFrame) -> str:
    """AUROC of OOD|ID✓ on each OOD set."""
    known = {column[0] for column in COLUMNS}
    sets = [name for name in found.index.get_level_values("negative").unique() if name not in known]
    rows = [
        [f"`{spec}`", *(f"{100 * found.loc[(spec, name, 'auroc'), 'mean']:.1f}" for name in sets)] for spec in specs
    ]
    return table(["", *sets], rows)


def markdown(data: Mapping[str, Sequence[Path]], *, tune: int, draws: int, device: str = "cpu") -> str:
    """All tables, with what they were measured on."""
    tables = specs_by_table()
    specs = list(dict.fromkeys(spec for group in tables.values() for spec in group))
    results, facts = {}, []
    for title, folders in data.items():
        runs = runs_of(folders)
        found = []
        for number, run in enumerate(runs, start=1):
            print(f"{title}, run {number} of {len(runs)}", file=sys.stderr)
            found.append(measure(run, specs, tune=tune, draws=draws, device=device))
        results[title] = judged(pd.concat([figures for figures, _ in found], ignore_index=True))
        facts.append(f"- {title}: {_told([known for _, known in found])}.")
    parts, alone = ["\n".join(facts)], tables["Alone"]
    for title, found in results.items():
        parts += [f"### {title} at a glance: each score alone", glance({name: name for name in alone}, found)]
        as_second = {name: f"sirc(msp, {name})" for name in alone}
        parts += [f"### {title} at a glance: each score as S2 of `sirc(msp, S2)`", glance(as_second, found)]
    for name, group in tables.items():
        parts += [f"### {name}", figures_table(group, results)]
    for title, found in results.items():
        parts += [f"### {title}, set by set: AUROC of OOD|ID✓ of each score alone", by_set(alone, found)]
    return "\n\n".join(parts)


def _told(runs: Sequence[Mapping[str, float]]) -> str:
    """What is known of some runs, in words."""
    said = {
        "ID error": [f"{100 * run['error']:.1f}%" for run in runs],
        "tuned T": [f"{run['temperature']:.2f}" for run in runs],
        "tuned p": ["−1 (MSP)" if run["p"] == -1 else f"{run['p']:.0f}" for run in runs],
    }
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    return "; ".join([count, *(f"{name} {', '.join(values)}" for name, values in said.items())])


def write(page: Path, text: str) -> None:
    """Put the text between the two marker comments of a page."""
    old = page.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(START)}.*{re.escape(END)}", re.DOTALL)
    if len(marked.findall(old)) != 1:
        raise ValueError(f"'{page}' must hold the lines {START} and {END}, in this order; it does not")
    page.write_text(marked.sub(lambda _: f"{START}\n\n{text}\n\n{END}", old), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line; print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='example: python -m studies.tools.score_table "Glyphs=sirc-demo/glyphs_resnet"',
    )
    parser.add_argument("data", nargs="+", metavar="TITLE=FOLDER[,FOLDER…]", help="a column group and its runs")
    parser.add_argument("--tune", type=int, default=1000, help="test rows to tune on, not tested (default: 1000)")
    parser.add_argument("--draws", type=int, default=500, help="of the bootstrap behind the marks (default: 500)")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda (default: cpu)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the part between the marker comments")
    options = parser.parse_args(arguments)
    data = {}
    for text in options.data:
        title, equals, folders = text.partition("=")
        if not equals:
            parser.error(f"data must be TITLE=FOLDER[,FOLDER…]; got {text!r}")
        data[title] = [Path(folder) for folder in folders.split(",")]
    try:
        text = markdown(data, tune=options.tune, draws=options.draws, device=options.device)
        print(text) if options.write is None else write(options.write, text)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
