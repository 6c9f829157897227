"""The tables of a study: figures over seeds, intervals, and the paper's own figures."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from sirc._utils import text
from sirc.evaluation import MEAN, WRONG
from sirc.experiment import Experiment
from sirc.experiment.results import read_results
from sirc.report.names import score_name
from studies.tools.draws import OF_MIXTURE
from studies.tools.measure import COLUMNS, EVERY

STUDIES = Path(__file__).resolve().parents[1]
PAPER_TABLES = STUDIES / "paper" / "tables.csv"
PAPER_DATA = "ImageNet-200"


@dataclass(frozen=True)
class Interval:
    """A figure, or the difference between two, in percent or points, with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{signed(self.value)} [{signed(self.low)}, {signed(self.high)}]"

    @property
    def finer(self) -> str:
        """With two digits, for areas under risk curves."""
        return f"{signed(self.value, 2)} [{signed(self.low, 2)}, {signed(self.high, 2)}]"

    @property
    def plain(self) -> str:
        """Without signs, for a figure that is no difference."""
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


class Study:
    """The measured figures of some networks, and what the paper printed of its own."""

    def __init__(self, folder: Path, experiments: Sequence[Path] = ()) -> None:
        for name in ("results.csv", "comparisons.csv", "sets.csv"):
            if not (folder / name).is_file():
                made = "`sirc run`" if name == "results.csv" else "`python -m studies.tools.results measure`"
                raise ValueError(f"'{folder}' must hold {name}; it does not. Make it with {made}.")
        self.folder = folder
        self.results = read_results(folder / "results.csv")
        comparisons = pd.read_csv(
            folder / "comparisons.csv", keep_default_na=False, na_values={"alpha": "", "beta": "", "images": ""}
        )
        if list(comparisons.columns) != COLUMNS:
            raise ValueError(
                f"'{folder / 'comparisons.csv'}' must have the columns {', '.join(COLUMNS)}; it has others."
            )
        self.comparisons = comparisons.assign(difference=pd.to_numeric(comparisons["difference"]))
        self.sizes = pd.read_csv(folder / "sets.csv", keep_default_na=False)
        printed = pd.read_csv(PAPER_TABLES, keep_default_na=False, na_values={"two_std": "", "mean": ""})
        self.printed = printed[printed["id_data"] == PAPER_DATA]
        self.printed_elsewhere = printed[printed["id_data"] != PAPER_DATA]
        self.experiments = [Experiment.read(path) for path in experiments]
        self._check_together()

    def _check_together(self) -> None:
        """Raise if the comparisons are of other runs than the results: both tables have figures of single scores."""
        own = self.comparisons
        own = own[(own["baseline"] == "") & (own["model"] != EVERY) & own["alpha"].isna()]
        for row in own.itertuples():
            found = self.mean(str(row.model), str(row.score), str(row.negative), str(row.metric)) / 100
            if not math.isclose(found, float(row.value), rel_tol=1e-4, abs_tol=1e-6):
                raise ValueError(
                    f"results.csv and comparisons.csv in '{self.folder}' must be of the same runs; {row.metric} of "
                    f"`{row.score}` for {row.negative} on {row.model} is {found:.4f} in one and {row.value:.4f} in the "
                    "other. Measure the runs of this results.csv again."
                )

    @cached_property
    def models(self) -> list[str]:
        """The names that claims are judged by: those of the networks, or in `together` the one for all of them."""
        return self.kinds

    @property
    def shown(self) -> list[str]:
        """The columns of a table by network; if there are several, one for all of them comes last."""
        return [*self.kinds, EVERY] if len(self.kinds) > 1 else self.kinds

    @cached_property
    def kinds(self) -> list[str]:
        """The networks, in the paper's order where it has them."""
        order = list(dict.fromkeys(self.printed["model"]))
        own = list(dict.fromkeys(self.results["model"]))
        return sorted(own, key=lambda model: order.index(model) if model in order else len(order) + own.index(model))

    @cached_property
    def scores(self) -> list[str]:
        """All scores that were measured."""
        return list(dict.fromkeys(self.results["score"]))

    @cached_property
    def sets(self) -> list[str]:
        """The OOD sets."""
        return list(self.sizes["set"][self.sizes["group"] != "ID"])

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The OOD sets of each group."""
        found: dict[str, list[str]] = {}
        for name, group in zip(self.sizes["set"], self.sizes["group"], strict=True):
            if group not in ("ID", ""):
                found.setdefault(group, []).append(name)
        return found

    @cached_property
    def runs(self) -> dict[str, int]:
        """How many seeds each network has."""
        counts = self.results.groupby("model")["seed"].nunique()
        return {model: int(counts[model]) for model in self.kinds}

    @property
    def seeds(self) -> int:
        """How many seeds a network has, at least."""
        return min(self.runs.values())

    @property
    def seed_words(self) -> str:
        """How many seeds networks have, in words."""
        most = max(self.runs.values())
        if most == 1:
            return "one run each"
        fewer = [f"{model} has {count}" for model, count in self.runs.items() if count < most]
        return f"{most} seeds each" + (f", but {' and '.join(fewer)}" if fewer else "")

    @cached_property
    def _over_seeds(self) -> Mapping[tuple[str, str, str, str], list[float]]:
        keys = ["model", "score", "negative", "metric"]
        found = self.results.groupby(keys, sort=False)["value"]
        return {(str(m), str(s), str(n), str(k)): list(values) for (m, s, n, k), values in found}

    @cached_property
    def _intervals(self) -> dict[tuple[object, ...], tuple[float, float, float]]:
        t = self.comparisons
        alpha, beta = ([None if pd.isna(x) else float(x) for x in t[name]] for name in ("alpha", "beta"))
        keys = zip(t["model"], t["score"], t["baseline"], t["negative"], t["metric"], alpha, beta, strict=True)
        centre = t["difference"].where(t["baseline"] != "", t["value"])
        return dict(zip(keys, zip(centre, t["low"], t["high"], strict=True), strict=True))

    def together(self) -> Study:
        """The same study with all networks as one, whose figures are the means of theirs."""
        other = copy.copy(self)
        other.models = [EVERY]
        return other

    def each(self, model: str, score: str, negative: str, metric: str) -> list[float]:
        """A figure for each seed, in percent; for `EVERY`, means over networks: of the first seeds, the second …"""
        if model == EVERY:
            found = [self.each(name, score, negative, metric) for name in self.kinds]
            return [sum(values) / len(values) for values in zip(*found, strict=False)]
        return [100 * value for value in self._over_seeds.get((model, score, negative, metric), [])]

    def mean(self, model: str, score: str, negative: str, metric: str) -> float:
        """Its mean over seeds; for `EVERY`, over networks too."""
        models = self.kinds if model == EVERY else [model]
        found = [self.each(name, score, negative, metric) for name in models]
        return sum(sum(v) / len(v) for v in found) / len(found) if all(found) else math.nan

    def two_std(self, model: str, score: str, negative: str, metric: str) -> float:
        """Twice its standard deviation over seeds, as the paper prints it."""
        values = pd.Series(self.each(model, score, negative, metric), dtype=float)
        return 2 * float(values.std())

    def interval(
        self, model: str, score: str, baseline: str, negative: str, metric: str, at: tuple[float, float] = (0.5, 0.5)
    ) -> Interval | None:
        """The difference to a baseline, or with the baseline "" the figure itself; None if it was not measured."""
        mixed = metric in OF_MIXTURE
        alpha = (1.0 if negative == WRONG else at[0]) if mixed else None
        found = self._intervals.get((model, score, baseline, negative, metric, alpha, at[1] if mixed else None))
        return None if found is None else Interval(*(100 * value for value in found))

    def paper(self, model: str, score: str, negative: str, metric: str) -> float:
        """The paper's figure for its network of this name; NaN if it has none."""
        return self._printed.get((model, score, negative, metric), math.nan)

    @cached_property
    def _printed(self) -> dict[tuple[str, str, str, str], float]:
        t = self.printed
        return dict(zip(zip(t["model"], t["score"], t["negative"], t["metric"], strict=True), t["mean"], strict=True))

    @cached_property
    def printed_models(self) -> list[str]:
        """The paper's networks of the same kinds, or all of its networks if it lacks a kind."""
        every = list(dict.fromkeys(self.printed["model"]))
        return self.kinds if set(self.kinds) <= set(every) else every

    @cached_property
    def printed_sets(self) -> list[str]:
        """The paper's OOD sets."""
        return [name for name in dict.fromkeys(self.printed["negative"]) if name not in (WRONG, MEAN)]

    def printed_difference(self, model: str, score: str, baseline: str, negative: str, metric: str) -> float:
        """The difference between two of the paper's figures."""
        return self.paper(model, score, negative, metric) - self.paper(model, baseline, negative, metric)

    def printed_range(self, score: str, baseline: str, negative: str, metric: str) -> str:
        """The least and the largest such difference among the paper's networks."""
        found = [self.printed_difference(model, score, baseline, negative, metric) for model in self.printed_models]
        return span(found)


def span(values: Iterable[float], digits: int = 1) -> str:
    """The range of some differences."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "–"
    low, high = signed(min(known), digits), signed(max(known), digits)
    return low if low == high else f"{low} … {high}"


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign; what rounds to 0 has none."""
    if math.isnan(value):
        return "–"
    rounded = f"{value:+.{digits}f}".replace("-", "−")
    return rounded[1:] if float(f"{value:.{digits}f}") == 0 else rounded


def named(score: str) -> str:
    """A score as tables name it."""
    return score_name(score).replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[object]], columns: str = "--:") -> str:
    """A Markdown table, empty without rows, with a dash for None; `columns` aligns all columns but the first."""
    rows = list(rows)
    if not rows:
        return ""
    lines = [header, ["---", *[columns] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join('–' if cell is None else str(cell) for cell in line)} |" for line in lines)


def listed(items: Sequence[str], most: int = 4) -> str:
    """Items as a sentence lists them; of many, the first `most` and the number of the others."""
    return text.listed(items if len(items) <= most + 1 else [*items[:most], f"{len(items) - most} more"])
